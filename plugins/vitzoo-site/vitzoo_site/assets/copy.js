// The buttons that copy the lines beside them.
"use strict";

for (const button of document.querySelectorAll("button.copy")) {
  const code = button.parentElement.querySelector("code");
  button.hidden = false;
  button.addEventListener("click", async () => {
    const copied = await copy(code);
    const said = copied ? "Copied" : "Selected: press Ctrl+C";
    document.getElementById("copied").textContent = said;
    button.textContent = said;
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
}

async function copy(code) {
  try {
    await navigator.clipboard.writeText(code.textContent);
    return true;
  } catch { // the page may be a file, or the browser may forbid it
    getSelection().selectAllChildren(code);
    return false;
  }
}
