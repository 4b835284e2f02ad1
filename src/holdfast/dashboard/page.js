// Show the text of the mark under the pointer below the chart. Without this script the texts are tooltips.
for (const figure of document.querySelectorAll("figure.readable")) {
  const readout = figure.querySelector("output");
  for (const title of figure.querySelectorAll("title")) {
    title.parentNode.dataset.reads = title.textContent;
    title.remove();
  }
  const read = (event) => {
    const part = event.target.closest("[data-reads]");
    if (part) readout.textContent = part.dataset.reads;
  };
  figure.addEventListener("pointerover", read);
  figure.addEventListener("pointerdown", read);
  readout.textContent = "Point at the chart, or tap it, to read a moment.";
}
