// Tiles: small pictures cut from a figure's one sheet of pictures.

const opened = new Map(); // source of a sheet → a promise of its picture

function openSheet(sheet) {
  if (!opened.has(sheet.source)) {
    opened.set(sheet.source, new Promise((resolve) => {
      const picture = new Image();
      picture.onload = () => resolve(picture);
      picture.src = sheet.source;
    }));
  }
  return opened.get(sheet.source);
}

/** Tile `index` of a sheet as a picture that says what is seen. */
function tile(sheet, index, label) {
  const canvas = make("canvas", { class: "tile", width: sheet.width, height: sheet.height, role: "img" });
  showTile(canvas, sheet, index, label);
  return canvas;
}

/** Put another tile into a picture; the last one asked for wins. */
function showTile(canvas, sheet, index, label) {
  canvas.setAttribute("aria-label", label);
  canvas.dataset.tile = index;
  openSheet(sheet).then((picture) => {
    if (Number(canvas.dataset.tile) !== index) return;
    const [column, row] = [index % sheet.columns, Math.floor(index / sheet.columns)];
    const from = [column * sheet.width, row * sheet.height, sheet.width, sheet.height];
    canvas.getContext("2d").drawImage(picture, ...from, 0, 0, sheet.width, sheet.height);
    canvas.dataset.drawn = index;
  });
}

/** A tile with words below it. */
function captioned(picture, ...lines) {
  return make("div", { class: "captioned" }, picture, lines.map((line) => make("span", {}, line)));
}
