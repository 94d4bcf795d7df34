// Shows TensorBoard in an output, where there is one to show. What is saved is the output without it: see profile_view.py.
(async () => {
  const about = __ABOUT__; // id, port, url, direct, page, logdir, made (ms since 1970), height (px)
  const box = [...document.querySelectorAll(`[id="${about.id}"]`)].find((e) => !e.dataset.ready);
  if (!box) return;
  box.dataset.ready = "yes";
  const [link, place] = [box.querySelector("a"), box.querySelector("div:last-child")];

  const NARROWEST = 960; // pixels

  const served = document.getElementById("jupyter-config-data"); // of JupyterLab and Notebook 7
  const loopback = ["localhost", "127.0.0.1", "[::1]"].includes(location.hostname);
  const editor = !location.protocol.startsWith("http"); // VS Code's outputs are on pages of a protocol of its own
  const colab = window.google?.colab?.kernel?.proxyPort;

  // Where TensorBoard may be for this browser, the likeliest first.
  const addresses = async () => {
    if (colab) return [await google.colab.kernel.proxyPort(about.port, { cache: true })];
    const found = [];
    // By the page's own name: under another one it is a third party, whose storage browsers block, and XProf stops there.
    if (about.direct && loopback) found.push(`http://${location.hostname.replace("[::1]", "localhost")}:${about.port}/`);
    // A page from elsewhere is not to ask the reader's machine for a port of the kernel's.
    else if (!about.direct || editor) found.push(new URL(about.url, location.href).href);
    if (served) {
      const base = JSON.parse(served.textContent).baseUrl ?? "/";
      found.push(new URL(`${base}proxy/${about.port}/`, location.href).href); // jupyter-server-proxy
    }
    return [...new Set(found)];
  };

  const answers = async (address) => {
    if (colab) return true;
    const ours = new URL(address).origin === location.origin;
    try {
      const reply = await fetch(new URL("data/environment", address), ours ? {} : { mode: "no-cors" });
      // From elsewhere a page learns that somebody answers, and not what.
      return !ours || (reply.ok && (await reply.json()).data_location === about.logdir);
    } catch {
      return false;
    }
  };

  const say = (text) => {
    place.textContent = text;
    place.style.cssText = "margin-top:4px;overflow-wrap:anywhere";
  };

  const show = async () => {
    const tried = await addresses();
    for (const address of tried) {
      if (!(await answers(address))) continue;
      const dark = document.body.dataset.jpThemeLight === "false";
      const page = new URL(about.page, address);
      if (dark) page.searchParams.set("darkMode", "true");
      link.href = page.href;
      const frame = document.createElement("iframe");
      Object.assign(frame, { title: `TensorBoard of ${about.logdir}`, src: page.href });
      frame.style.cssText = "display:block;border:0;transform-origin:0 0";
      place.style.cssText = `height:${about.height}px;margin-top:8px;overflow:hidden`;
      place.replaceChildren(frame);
      // In a narrower window XProf lays its menu over what it shows: give it the width, and draw it smaller.
      const fit = () => {
        const scale = Math.min(1, place.clientWidth / NARROWEST) || 1;
        const [width, height] = [place.clientWidth / scale, about.height / scale];
        Object.assign(frame.style, { width: `${width}px`, height: `${height}px`, transform: `scale(${scale})` });
      };
      new ResizeObserver(fit).observe(place);
      return fit();
    }
    const where = tried.length ? `No TensorBoard of this log directory answers at ${tried.join(" nor ")}.` : "";
    const [host, port] = [location.hostname, about.port];
    if (editor) {
      say(`${where} If the link opens, it is only that this editor shows no page of a server in an output.`);
    } else if (about.direct && !loopback) {
      say(
        `${where} This page comes from ${host}, and TensorBoard listens on that machine alone: install jupyter-server-proxy ` +
          `there, or forward the port (ssh -L ${port}:127.0.0.1:${port} ${host}) and open the link.`,
      );
    } else {
      say(`${where} Run the cell again.`);
    }
  };

  // Only a page that was open when the cell ran looks for a server at once. One that was opened later shows a button: the
  // kernel may be gone, another program may have its port, and the reader may be somebody else.
  if (performance.timeOrigin < about.made) return show();
  const button = document.createElement("button");
  button.textContent = "Show it here, if it still runs";
  button.style.cssText = "margin-top:6px";
  button.addEventListener("click", () => (say("Looking for it ..."), show()));
  place.replaceChildren(button);
})();
