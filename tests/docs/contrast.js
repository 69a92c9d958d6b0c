// The least contrast between a text and what lies behind it, of every visible text of a page; WCAG 2.2, 1.4.3.
(() => {
  const number = (text) => text.match(/[\d.]+/g).map(Number);
  const part = (v) => ((v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  const over = (top, below) => {
    const a = top[3] ?? 1;
    return [0, 1, 2].map((i) => a * top[i] + (1 - a) * below[i]);
  };
  const behind = (element) => {
    const layers = [];
    for (let e = element; e; e = e.parentElement) layers.unshift(number(getComputedStyle(e).backgroundColor));
    return layers.reduce((below, top) => over(top, below), [255, 255, 255]);
  };
  const found = [];
  let texts = 0;
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    const style = getComputedStyle(element);
    if (!walker.currentNode.data.trim() || !element.checkVisibility({ opacityProperty: true, visibilityProperty: true }))
      continue;
    if (element.closest("script, style, noscript, template, dialog, .skip-link, #pst-back-to-top, .headerlink")) continue;
    texts += 1;
    const below = behind(element);
    const ink = over(number(style.color), below);
    const [a, b] = [light(ink), light(below)].sort((x, y) => y - x);
    const size = parseFloat(style.fontSize);
    const needed = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700) ? 3 : 4.5;
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < needed) found.push(`${ratio.toFixed(2)} ${element.tagName}.${element.className}: ${walker.currentNode.data.trim().slice(0, 40)}`);
  }
  document.body.dataset.texts = texts;
  document.body.dataset.contrast = JSON.stringify([...new Set(found)]);
})();
