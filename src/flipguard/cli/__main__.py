from flipguard.cli import main

main()
