/* From disk (file://) browsers start no workers, and the search is one: there a hidden frame stands in for it. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const home = new URL(url, location).href
      this.waiting = []
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.body.appendChild(this.frame)
      const inside = this.frame.contentWindow
      const page = inside.document
      page.open()
      page.write("<!doctype html><body></body>")
      page.close()
      inside.postMessage = data => setTimeout(() => {
        const message = new MessageEvent("message", { data })
        this.dispatchEvent(message)
        if (this.onmessage) this.onmessage(message)
      })
      inside.importScripts = (...urls) => urls.reduce((before, each) => before.then(() => load(each)), Promise.resolve())
      const load = source => new Promise((resolve, reject) => {
        const script = page.createElement("script")
        script.src = new URL(source, home).href
        script.onload = resolve
        script.onerror = reject
        page.body.appendChild(script)
      })
      load(home).then(() => {
        const waited = this.waiting
        this.waiting = null
        waited.forEach(data => this.postMessage(data))
      })
    }
    postMessage(data) {
      if (this.waiting) this.waiting.push(data)
      else this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }))
    }
    terminate() {
      this.frame.remove()
    }
  }
}
