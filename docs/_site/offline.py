"""What a built site would fetch from elsewhere when it is read: nothing, or this says what and fails."""

import re
import sys
from pathlib import Path

FETCHED = re.compile(
    r"""<(?:script|img|iframe|source|video|audio|embed)\b[^>]*?\bsrc\s*=\s*["']?(?:https?:)?//[^\s"'>]+"""
    r"""|<link\b[^>]*?\bhref\s*=\s*["']?(?:https?:)?//[^\s"'>]+|@import\s+["'](?:https?:)?//[^"']+"""
    r"""|url\(\s*["']?(?:https?:)?//[^)]+""",
    re.IGNORECASE,
)
CANONICAL = re.compile(r'<link\s+rel="(?:canonical|prev|next)"[^>]*>')


def fetched(folder: Path) -> list[str]:
    """Each place of a page or a style sheet that makes a browser ask another host."""
    found = []
    for path in sorted(folder.rglob("*")):
        if path.suffix in (".html", ".css", ".svg"):
            text = CANONICAL.sub("", path.read_text("utf-8"))
            found += [f"{path.relative_to(folder)}: {each[:120]}" for each in FETCHED.findall(text)]
    return found


if __name__ == "__main__":
    wrong = fetched(Path(sys.argv[1]))
    print("\n".join(wrong) or "the site asks nothing of other hosts")
    sys.exit(bool(wrong))
