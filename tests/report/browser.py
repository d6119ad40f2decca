"""A page in a real browser: the Chromium in the wheel of kaleido 0.2.1.

Kaleido loads `js/kaleido_scopes.js` from its working directory, calls the scope that it was started
with for each line of its input, and prints the result. Our scope shows a page in a frame and
evaluates an expression there.
"""

import importlib.util
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

# Runs before the page's own scripts, and keeps what the console would show in red.
HOOK = """<script>
window.complaints = [];
addEventListener("error", e => complaints.push(
  e.message || "cannot load " + e.target.outerHTML.slice(0, 200)), true);
addEventListener("unhandledrejection", e => complaints.push(String(e.reason)));
console.error = (...words) => complaints.push(words.join(" "));
</script>"""
SCOPE = """
window.kaleido_scopes = {plotly: async task => {
  const frame = document.createElement("iframe");
  const rest = () => new Promise(done => setTimeout(done, 20));
  const loaded = new Promise(done => frame.onload = done);
  Object.assign(frame, {width: 1280, height: 800, src: task.page});
  document.body.append(frame);
  await loaded;
  await rest();
  const page = frame.contentWindow;
  let value = null;
  if (!page.complaints.length) {
    try { value = await page.eval(task.expression); }
    catch (error) { page.complaints.push(String(error)); }
  }
  await rest();
  return {value, complaints: page.complaints};
}};
"""
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--allow-file-access-from-files",
    "--disable-breakpad",
    "--disable-dev-shm-usage",
)


def look_at(html: str, expression: str, folder: Path, seconds: float = 60) -> Any:
    """The value of a JavaScript expression in a page; an error in the page is raised.

    `folder` is for temporary files.
    """
    spec = importlib.util.find_spec("kaleido")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    home = Path(spec.submodule_search_locations[0]) / "executable"
    (folder / "js").mkdir(parents=True)
    (folder / "js" / "kaleido_scopes.js").write_text(SCOPE, encoding="utf-8")
    (folder / "version").write_text("0.2.1", encoding="utf-8")
    declared, rest = html.split(">", 1)
    assert declared == "<!doctype html"
    (folder / "page.html").write_text(f"{declared}>{HOOK}{rest}", encoding="utf-8")
    places = {
        "LD_LIBRARY_PATH": home / "lib",
        "FONTCONFIG_PATH": home / "etc" / "fonts",
        "HOME": folder,
        "TMPDIR": folder,
    }
    task = {"page": (folder / "page.html").resolve().as_uri(), "expression": expression}
    with subprocess.Popen(
        [home / "bin" / "kaleido", "plotly", *FLAGS],
        cwd=folder,
        env=os.environ | {name: str(path) for name, path in places.items()},
        text=True,
        encoding="utf-8",
        start_new_session=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            lines, _ = process.communicate(json.dumps(task) + "\n", seconds)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    answer = json.loads(lines.splitlines()[1])
    if answer["complaints"]:
        raise AssertionError("; ".join(answer["complaints"]))
    return answer["value"]
