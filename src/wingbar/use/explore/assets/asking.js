// An image is asked about: who is near to it before and after training, where encoders look, rebuilt image and twin.

const pictureOf = (about, row) => `/picture/${row}?v=${about.token}`;

/** What the server answers, or an error with its sentence. */
async function answerOf(path, options = {}) {
  const reply = await fetch(path, options).catch(() => { throw new Error("The server does not answer; is it still running?"); });
  if (reply.ok) return reply;
  const { error } = await reply.json().catch(() => ({ error: `The server answered with ${reply.status}.` }));
  throw new Error(error);
}

/** The same as JSON. */
const jsonOf = async (path, options) => (await answerOf(path, options)).json();

/** Only the last of several questions is answered: `latest(question, use)`; `trouble` is told what went wrong. */
function patience(trouble) {
  let last = 0;
  return async (question, use) => {
    const own = (last += 1);
    try {
      const answer = await question();
      if (own === last) use(answer);
    } catch (error) {
      if (own === last) trouble(error.message);
    }
  };
}

/** The card that takes an image, by choosing, dropping, pasting or chance; `ask` gets a file or a row. */
function askingCard(about, ask) {
  const field = unique("file");
  const input = make("input", { type: "file", id: field, class: "unseen", accept: "image/*", onchange: () => { if (input.files.length) ask(input.files[0]); input.value = ""; } });
  const shown = make("div", { class: "shown" });
  const name = make("p", { class: "name", id: "asked" });
  const path = make("p", { class: "facts path" });
  const anyOne = () => ask(Math.floor(Math.random() * about.names.length));
  const card = [
    input,
    make("label", { for: field, class: "drop" }, shown, make("span", { class: "hint" }, "Drop an image here, paste one, or ", make("u", {}, "choose a file"))),
    make("div", { class: "called" }, name, path),
    make("button", { type: "button", class: "quiet", id: "any", onclick: anyOne }, "Any image"),
  ];
  takeDrops((file) => ask(file));
  return { card, show: (picture, [title, rest = ""]) => {
    shown.replaceChildren(make("img", { src: picture, alt: `What the encoder sees of ${title}` }));
    [name.textContent, path.textContent] = [title, rest];
  } };
}

/** Files dropped anywhere on the page, or pasted. */
function takeDrops(take) {
  const light = (on) => document.body.classList.toggle("dragging", on);
  document.addEventListener("dragover", (event) => { event.preventDefault(); light(event.dataTransfer.types.includes("Files")); });
  document.addEventListener("dragleave", (event) => { if (!event.relatedTarget) light(false); });
  document.addEventListener("drop", (event) => { event.preventDefault(); light(false); if (event.dataTransfer.files.length) take(event.dataTransfer.files[0]); });
  document.addEventListener("paste", (event) => { if (event.clipboardData.files.length) take(event.clipboardData.files[0]); });
}

const titleOf = (about, row) => (about.labels[row] >= 0 ? about.classes[about.labels[row]] : about.names[row]);

/** Where every encoder looks, and its nearest images. */
function showFound(about, answer, ask) {
  const label = answer.row >= 0 ? about.labels[answer.row] : -1;
  return answer.encoders.map((encoder, place) =>
    make("div", { class: `encoder ${answer.encoders.length > 1 && place === 0 ? "before" : "after"}` },
      make("h2", {}, `Nearest ${encoder.title}`),
      make("ol", { class: "near" },
        make("li", { class: "looks" }, encoder.looks ? make("img", { src: encoder.looks, alt: `Where the encoder looks, ${encoder.title}` }) : null, make("span", {}, encoder.looks ? "where it looks" : encoder.why)),
        encoder.near.map(([row, cosine]) => nearImage(about, row, cosine, label, ask)))));
}

function nearImage(about, row, cosine, label, ask) {
  const known = label >= 0 && about.labels[row] >= 0;
  const words = titleOf(about, row);
  return make("li", { class: known ? (about.labels[row] === label ? "right" : "wrong") : null },
    make("button", { type: "button", title: about.names[row], "data-row": row, "aria-label": `${words}, cosine ${cosine.toFixed(3)}: ask about it`, onclick: () => ask(row) },
      make("img", { src: pictureOf(about, row), alt: "", loading: "lazy" }),
      make("span", { class: "words" }, words), make("span", { class: "cosine" }, cosine.toFixed(3))));
}

/** Rebuilt image and twin, a slider for the noise and a switch for every criterion; `show` is given a new image. */
function twinDesk(about, trouble) {
  const latest = patience(trouble);
  const level = unique("noise");
  const scale = () => about.scales[Number(slider.value)];
  const slider = make("input", { type: "range", id: level, min: 0, max: about.scales.length - 1, step: 1, value: about.scales.indexOf(1), oninput: () => refresh() });
  const output = make("output", { for: level });
  const boxes = about.criteria.map((name, place) => make("input", { type: "checkbox", id: unique("criterion"), checked: "", "data-criterion": place, onchange: () => refresh() }));
  const row = make("div", { class: "row four", "aria-live": "polite" });
  let asked = null;
  const refresh = () => {
    output.textContent = `×${scale()}`;
    slider.setAttribute("aria-valuetext", `${scale()} times the noise of training`);
    const on = boxes.filter((box) => box.checked).map((box) => box.dataset.criterion);
    if (asked) latest(() => jsonOf(`/twin/${asked.key}?noise=${scale()}&criteria=${on}`), (made) => row.replaceChildren(...twinPictures(asked, made)));
  };
  const controls = make("p", { class: "slider" }, make("label", { for: level }, "Noise"), slider, output,
    boxes.map((box, place) => make("span", { class: "switch" }, box, make("label", { for: box.id }, about.criteria[place]))));
  const desk = [make("h2", {}, "Rebuilt image and twin"), controls, row,
    make("p", { class: "facts" }, "×1 is the noise of training. The decoder rebuilds the image from its feature; the twin comes from the feature with noise where the criteria allow it.")];
  return { desk, show: (answer) => { asked = answer; refresh(); } };
}

function twinPictures(asked, made) {
  const shown = { image: asked.seen, rebuilt: made.rebuilt, twin: made.twin, change: made.change };
  const words = { change: `change: ${(100 * made.moved).toFixed(1)} % on average` };
  return Object.entries(shown).map(([name, source]) =>
    make("figure", { class: "captioned", "data-name": name }, make("img", { src: source, alt: name, class: "tile" }), make("span", {}, words[name] ?? name)));
}
