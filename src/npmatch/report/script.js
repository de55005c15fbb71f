// Hover, sorting and printing. The page says everything without it.
(() => {
  "use strict";
  document.documentElement.classList.add("scripted");

  function nearest(points, x) {
    let best = 0;
    points.forEach((point, i) => { if (Math.abs(point[0] - x) < Math.abs(points[best][0] - x)) best = i; });
    return best;
  }

  function show(svg, x) {
    const cursor = svg.querySelector(".cursor");
    const [rule, says] = [cursor.querySelector("line"), cursor.querySelector("text")];
    const found = svg.lines.map((points) => points[nearest(points, x)]);
    cursor.querySelectorAll("circle").forEach((dot, i) => {
      dot.setAttribute("cx", found[i][0]);
      dot.setAttribute("cy", found[i][1]);
    });
    rule.setAttribute("x1", found[0][0]);
    rule.setAttribute("x2", found[0][0]);
    says.textContent = found.map((point, i) => (i ? point[2].replace(/^[^:]*: /, "") : point[2])).join(" · ");
    cursor.setAttribute("visibility", "visible");
    svg.at = nearest(svg.lines[0], x);
  }

  document.querySelectorAll("svg[data-hover]").forEach((svg) => {
    svg.lines = JSON.parse(svg.dataset.hover);
    const hide = () => svg.querySelector(".cursor").setAttribute("visibility", "hidden");
    svg.addEventListener("pointermove", (event) => {
      const place = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
      show(svg, place.x);
    });
    svg.addEventListener("pointerleave", hide);
    svg.addEventListener("blur", hide);
    svg.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!move) return;
      event.preventDefault();
      const points = svg.lines[0];
      const next = svg.at === undefined ? points.length - 1 : svg.at + move;
      show(svg, points[Math.max(0, Math.min(points.length - 1, next))][0]);
    });
  });

  // "If you accept the x % most certain ...": the slider walks along the risk-coverage curve.
  const slider = document.getElementById("accept");
  if (slider) {
    const says = JSON.parse(slider.dataset.says);
    const svg = document.querySelector("#risk-coverage svg");
    const tell = () => {
      document.getElementById("accepted").textContent = says[slider.value];
      slider.setAttribute("aria-valuetext", says[slider.value]);
    };
    slider.addEventListener("input", () => { tell(); show(svg, svg.lines[0][slider.value][0]); });
    tell();
  }

  document.querySelectorAll("table.sortable").forEach((table) => {
    const body = table.tBodies[0];
    table.querySelectorAll("thead th").forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const up = head.getAttribute("aria-sort") !== "ascending";
        const value = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
        const order = (a, b) => (isNaN(value(a)) || isNaN(value(b)) ? value(a).localeCompare(value(b)) : value(a) - value(b));
        body.append(...[...body.rows].sort((a, b) => (up ? order(a, b) : order(b, a))));
        table.querySelectorAll("th").forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
      });
    });
  });

  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((part) => { part.open = true; }));
})();
