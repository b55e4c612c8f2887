// Plays a film of psrt.views.film: one frame at a time, forward and back, with buttons and keys.
// Everything is drawn with colours of the page's style, for light and dark.
"use strict";
(() => {
  const root = document.documentElement;
  const films = JSON.parse(document.getElementById("charts").textContent);
  const PAUSE = 1400; // milliseconds per frame
  // FILE?film shows the film alone, which plays by itself, again and again: for a page that embeds it.
  const alone = location.search === "?film";

  function tag(name, attributes, ...children) {
    const svg = ["svg", "g", "path", "rect", "circle", "line", "text", "polygon", "title"].includes(name);
    const it = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes || {})) it.setAttribute(key, value);
    it.append(...children);
    return it;
  }
  const colour = (style) => (style < 0 ? "var(--ink)" : `var(--s${style % 7})`);
  const wide = (text, size) => 0.62 * size * text.length;
  const clamp = (value, low, high) => Math.max(low, Math.min(high, value));

  // By rank, the cells after a frame, and which of them the frame has changed.
  function heldAfter(film, number) {
    const held = film.start.map((cells) => cells.slice());
    const changed = film.start.map(() => new Set());
    film.frames.slice(0, number + 1).forEach((frame, i) => {
      for (const [rank, index, ...cell] of frame.changes || []) {
        held[rank][index] = cell;
        if (i === number) changed[rank].add(index);
      }
    });
    return [held, changed];
  }

  function strip(scene, rank, held, changed, left, top) {
    const [width, height, columns] = scene.strip;
    const [across, down] = [Math.min(held.length, columns), Math.ceil(held.length / columns)];
    const ground = { x: left, y: top, width: width * across, height: height * down, fill: "var(--ground)" };
    const group = tag("g", { class: "strip", "data-rank": rank }, tag("rect", ground));
    const firm = (i) => (changed.has(i) && (held[i][0] || held[i][1] >= 0) ? 1 : 0); // not cells that became empty
    const order = held.map((_, i) => i).sort((a, b) => firm(a) - firm(b)); // solid edges on top
    for (const i of order) {
      const [text, style, strength] = held[i];
      const x = left + width * (i % columns), y = top + height * Math.floor(i / columns);
      const place = { x, y, width, height };
      if (style >= 0) group.append(tag("rect", { ...place, fill: colour(style), "fill-opacity": strength }));
      const look = (style < 0 && !text ? " empty" : "") + (firm(i) ? " changed" : "");
      group.append(tag("rect", { ...place, class: "cell" + look }));
      if (text) group.append(tag("text", { x: x + width / 2, y: y + height / 2, class: "held", "data-cell": i }, text));
    }
    return group;
  }

  // A curved arrow from rim to rim, so that arrows in both directions do not overlap.
  function arrow(from, to, style, label, bend, room, where) {
    const [x, y] = from, [toX, toY] = to;
    const length = Math.hypot(toX - x, toY - y) || 1;
    const [dx, dy] = [(toX - x) / length, (toY - y) / length];
    const middle = [(x + toX) / 2 + dy * bend * length, (y + toY) / 2 - dx * bend * length];
    const rim = ([a, b], away) => {
      const d = Math.hypot(middle[0] - a, middle[1] - b) || 1;
      return [a + (middle[0] - a) / d * away, b + (middle[1] - b) / d * away];
    };
    const start = rim(from, room), tip = rim(to, room + 1), neck = rim(to, room + 9);
    const side = [(tip[1] - neck[1]) * 0.5, (neck[0] - tip[0]) * 0.5];
    const at = (t) => [0, 1].map((k) => (1 - t) ** 2 * start[k] + 2 * t * (1 - t) * middle[k] + t * t * neck[k]);
    const group = tag("g", { class: "arrow" },
      tag("path", { d: `M${start}Q${middle} ${neck}`, class: "message", pathLength: 1, stroke: colour(style) }),
      tag("polygon", { points: `${tip} ${neck[0] + side[0]},${neck[1] + side[1]} ${neck[0] - side[0]},${neck[1] - side[1]}`, class: "head", fill: colour(style) }));
    if (label) group.append(written(label, ...at(where)));
    return group;
  }

  function written(text, x, y) {
    const width = wide(text, 11) + 6;
    return tag("g", { class: "label" },
      tag("rect", { x: x - width / 2, y: y - 8, width, height: 16, rx: 3, class: "ground" }),
      tag("text", { x, y }, text));
  }

  function drawPlane(film, number, svg) {
    const scene = film.scene, frame = film.frames[number], [held, changed] = heldAfter(film, number);
    svg.setAttribute("viewBox", `0 0 ${scene.width} ${scene.height}`);
    const place = (rank) => scene.nodes[rank].slice(1, 3);
    for (const i of frame.edges || scene.edges.keys()) {
      const [a, b] = scene.edges[i];
      svg.append(tag("line", { x1: place(a)[0], y1: place(a)[1], x2: place(b)[0], y2: place(b)[1], class: "edge" }));
    }
    const messages = (frame.messages || []).filter((it) => it[0] !== it[1]);
    const ways = new Set(messages.map((it) => `${it[0]} ${it[1]}`));
    const arrows = messages.map(([source, target, label, , style]) => {
      const [from, to] = [place(source), place(target)];
      // In the middle of a short arrow, but near the sender if others may cross it.
      const alone = !ways.has(`${target} ${source}`) && Math.hypot(to[0] - from[0], to[1] - from[1]) < 260;
      return arrow(from, to, style, label, 0.09, scene.radius + 2, alone ? 0.5 : 0.3);
    });
    // Labels are drawn over all lines, ranks and what they hold over labels.
    svg.append(...arrows, ...arrows.flatMap((it) => [...it.querySelectorAll(".label")]));
    scene.nodes.forEach(([name, x, y, left, top], rank) => {
      const fits = Math.floor((2 * scene.radius - 8) / wide("m", 13));
      const short = name.length > Math.max(fits, 3) ? name.slice(0, fits - 1) + "…" : name;
      svg.append(tag("circle", { cx: x, cy: y, r: scene.radius, class: "node" }, tag("title", {}, name)),
        tag("text", { x, y, class: "name" }, short));
      svg.append(strip(scene, rank, held[rank], changed[rank], left, top));
    });
  }

  // Time runs to the right: past bars have full colours, future ones are pale.
  function drawLanes(film, number, svg) {
    const scene = film.scene, frame = film.frames[number], [held, changed] = heldAfter(film, number);
    const LEFT = scene.lanes.some((it) => it[1]) ? 150 : 86, TOP = 24;
    const WIDTH = clamp(svg.clientWidth || 1000, 400, 1000); // text is as large as that of the page
    const high = clamp(300 / scene.lanes.length, 24, 58), tallest = Math.min(high - 6, 26), moment = frame.time || 0;
    const [cell, , columns] = scene.strip;
    const since = number ? film.frames[number - 1].time || 0 : moment;
    const most = Math.max(0, ...held.map((it) => Math.min(it.length, columns)));
    const left = LEFT + most * cell + (most ? 14 : 0), room = WIDTH - left - 14;
    const scale = room / scene.window;
    const from = clamp(moment - 0.75 * scene.window, 0, Math.max(0, scene.end - scene.window));
    const x = (time) => left + (time - from) * scale;
    const y = (lane) => TOP + high * lane;
    const bottom = y(scene.lanes.length);
    svg.setAttribute("viewBox", `0 0 ${WIDTH} ${bottom + 26}`);
    scene.lanes.forEach(([name, what], lane) => {
      const first = lane === 0 || scene.lanes[lane - 1][0] !== name;
      svg.append(tag("rect", { x: left, y: y(lane) + 2, width: room, height: high - 4, class: "lane" }));
      if (first) svg.append(tag("text", { x: 4, y: y(lane) + high / 2, class: "name left" }, name));
      if (what) svg.append(tag("text", { x: 86, y: y(lane) + high / 2, class: "soft left" }, what));
    });
    const apart = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000].find((it) => it * scale >= 28) || 5000;
    for (let mark = Math.ceil(from / apart) * apart; x(mark) <= left + room + 0.5; mark += apart) {
      svg.append(tag("line", { x1: x(mark), x2: x(mark), y1: TOP, y2: bottom, class: "tick" }),
        tag("text", { x: x(mark), y: bottom + 12, class: "soft" }, String(mark)));
    }
    svg.append(tag("text", { x: 4, y: bottom + 12, class: "soft left" }, scene.unit));
    for (const [lane, start, stop, text, style, strength, height] of scene.bars) {
      const begin = Math.max(x(start), left), end = Math.min(x(stop), left + room);
      if (end <= begin) continue;
      const when = start >= moment ? " later" : stop > since && height > 0.5 ? " now" : "";
      const tall = tallest * height, top = y(lane) + (high - tall) / 2;
      const group = tag("g", { class: "bar" + when }, tag("rect", { x: begin, y: top, width: end - begin, height: tall, rx: 2, fill: colour(style), "fill-opacity": strength }));
      if (text && wide(text, 10) < end - begin) group.append(tag("text", { x: (begin + end) / 2, y: y(lane) + high / 2, class: "bar-text" }, text));
      svg.append(group);
    }
    svg.append(tag("line", { x1: x(moment), x2: x(moment), y1: TOP - 8, y2: bottom + 4, class: "moment" }));
    const inside = (time) => clamp(x(time), left, left + room);
    const arrows = (frame.messages || []).filter((it) => it[0] !== it[1]).map(([source, target, label, , , start, stop]) => {
      const down = scene.laneOf[target] > scene.laneOf[source] ? 1 : -1;
      const edge = (rank, way) => y(scene.laneOf[rank]) + high / 2 + way * (tallest / 2 + 1);
      const it = arrow([inside(start), edge(source, down)], [inside(stop), edge(target, -down)], -1, "", 0, 0, 0);
      if (label) { // beside the start of the arrow, and not beyond the picture
        const half = wide(label, 11) / 2 + 4;
        it.append(written(label, Math.min(inside(start) + 4 + half, WIDTH - half), edge(source, down) + 9 * down));
      }
      return it;
    });
    svg.append(...arrows, ...arrows.flatMap((it) => [...it.querySelectorAll(".label")]));
    scene.columns.forEach((name, i) => svg.append(tag("text", { x: LEFT + cell * (i + 0.5), y: TOP - 10, class: "soft" }, name)));
    held.forEach((cells, rank) => svg.append(strip(scene, rank, cells, changed[rank], LEFT, y(scene.laneOf[rank]) + (high - scene.strip[1]) / 2)));
  }

  class Player {
    constructor(box, film) {
      this.film = film;
      this.number = 0;
      this.timer = null;
      const button = (name, text, act) => {
        const it = tag("button", { type: "button", class: name, "aria-label": name, title: name }, text);
        it.addEventListener("click", act);
        return it;
      };
      const last = film.frames.length - 1;
      this.first = button("first", "|◀", () => this.go(0));
      this.back = button("back", "◀", () => this.go(this.number - 1));
      this.play = button("play", "", () => this.toggle());
      this.forward = button("forward", "▶", () => this.go(this.number + 1));
      this.end = button("last", "▶|", () => this.go(last));
      this.slider = tag("input", { type: "range", min: 0, max: last, step: 1, value: 0, "aria-label": "step" });
      this.slider.addEventListener("input", () => this.go(Number(this.slider.value)));
      this.where = tag("output");
      this.svg = tag("svg", { role: "img", class: film.scene.lanes?.length > 10 ? "long" : "" });
      this.said = tag("p", { class: "said", "aria-live": alone ? "off" : "polite" });
      this.lines = tag("ul", { class: "lines" });
      this.spent = tag("tbody");
      const table = tag("table", { class: "spent" },
        tag("thead", {}, tag("tr", {}, ...["cost", "so far", "in all", film.bound, ""].map((it) => tag("th", { scope: "col" }, it)))),
        this.spent);
      const controls = tag("div", { class: "controls", role: "group", "aria-label": "player" },
        this.first, this.back, this.play, this.forward, this.end, this.slider, this.where);
      const legend = tag("p", { class: "legend" }, ...film.legend.map(([name, style, strength]) =>
        tag("span", {}, tag("svg", { class: "swatch", viewBox: "0 0 24 8", "aria-hidden": "true" },
          tag("rect", { width: 24, height: 8, fill: colour(style), "fill-opacity": strength })), " " + name)));
      const keys = tag("p", { class: "keys" }, "keys: space plays or pauses, ← and → move one step, Home and End jump to the ends");
      box.replaceChildren(this.svg, legend, controls, this.said, this.lines, ...(film.costs.length ? [table] : []), keys);
      box.parentElement.classList.add("film");
      this.show();
      if (alone && !matchMedia("(prefers-reduced-motion: reduce)").matches) this.toggle();
    }

    go(number) {
      this.stop();
      this.step(number);
    }

    step(number) {
      const to = clamp(number, 0, this.film.frames.length - 1);
      if (to !== this.number) {
        this.number = to;
        this.show();
      }
    }

    toggle() {
      if (this.timer !== null) { this.stop(); return; }
      const last = this.film.frames.length - 1;
      if (this.number === last) this.step(0);
      this.timer = setInterval(() => {
        this.step(this.number === last ? 0 : this.number + 1);
        if (this.number === last && !alone) this.stop();
      }, PAUSE);
      this.buttons();
    }

    stop() {
      clearInterval(this.timer);
      this.timer = null;
      this.buttons();
    }

    buttons() {
      const last = this.film.frames.length - 1, plays = this.timer !== null;
      this.first.disabled = this.back.disabled = this.number === 0;
      this.forward.disabled = this.end.disabled = this.number === last;
      this.play.textContent = plays ? "❚❚ pause" : "▶ play";
      this.play.setAttribute("aria-label", plays ? "pause" : "play");
      root.dataset.plays = String(plays);
    }

    show() {
      const film = this.film, frame = film.frames[this.number];
      this.svg.replaceChildren();
      (film.scene.lanes ? drawLanes : drawPlane)(film, this.number, this.svg);
      this.svg.setAttribute("aria-label", `${frame.label}: ${frame.caption}`);
      this.slider.value = this.number;
      this.slider.setAttribute("aria-valuetext", frame.label);
      this.where.textContent = `${frame.label} · ${this.number + 1} of ${film.frames.length}`;
      this.said.textContent = frame.caption;
      this.lines.replaceChildren(...(frame.messages || []).map((it) => tag("li", {}, it[3])));
      this.spent.replaceChildren(...film.costs.map((it, i) => this.cost(it, (frame.costs || [])[i] || ["", 0])));
      root.dataset.step = String(this.number);
      this.buttons();
    }

    cost([name, whole, least, share], [text, part]) {
      const percent = (value) => `${(100 * clamp(value, 0, 1)).toFixed(2)}%`;
      const bar = tag("i"), bound = tag("b", { title: `${this.film.bound} ${least}` });
      const full = Math.max(1, share);
      bar.style.width = percent(part / full);
      bound.style.left = percent(share / full);
      const meter = tag("div", { class: "meter", "aria-hidden": "true" }, bar, ...(least ? [bound] : []));
      return tag("tr", {}, tag("th", { scope: "row" }, name), tag("td", {}, text), tag("td", {}, whole), tag("td", {}, least), tag("td", {}, meter));
    }

    key(event) {
      const last = this.film.frames.length - 1;
      const act = { " ": () => this.toggle(), ArrowLeft: () => this.go(this.number - 1), ArrowRight: () => this.go(this.number + 1), Home: () => this.go(0), End: () => this.go(last) }[event.key];
      const has = event.target.closest("button, summary, a"); // a space presses these
      if (!act || event.ctrlKey || event.altKey || event.metaKey || (event.key === " " && has)) return;
      event.preventDefault();
      act();
    }
  }

  try {
    if (alone) root.classList.add("alone");
    if (alone || window.top !== window.self) root.classList.add("embedded");
    for (const box of document.querySelectorAll("[data-chart]")) {
      const player = new Player(box, films[Number(box.dataset.chart)]);
      document.addEventListener("keydown", (event) => player.key(event));
      window.addEventListener("resize", () => player.show());
    }
  } catch (error) { // the table has everything as well
    root.dataset.error = String(error);
    console.error(error);
  }
})();
