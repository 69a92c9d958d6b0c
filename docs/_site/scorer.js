/* Order of what the search finds: public names that the query is the whole of, then pages that people read, by
   their headings before their text, then other names, proofs, the reference, and the project's own pages. */
const asked = () => (new URLSearchParams(window.location.search).get("q") || "").toLowerCase().trim();

const headingsFor = (query) => {
  // page -> [part of it that the query is, text, anchor] of the heading that has all words of the query
  if (headingsFor.query === query) return headingsFor.found;
  const stemmer = new Stemmer();
  const told = splitQuery(query).filter((word) => !stopwords.has(word));
  const begins = told.map((word) => new RegExp(`(^|[^a-z0-9])${_escapeRegExp(stemmer.stemWord(word))}`, "i"));
  const found = {};
  for (const [title, places] of Object.entries(Search._index.alltitles)) {
    if (!told.length || !begins.every((word) => word.test(title))) continue;
    for (const [file, id] of places) {
      const page = Search._index.docnames[file];
      const part = Math.min(told.join(" ").length / title.length, 1);
      if (!found[page] || part > found[page][0])
        found[page] = [part, title, title === Search._index.titles[file] ? null : id];
    }
  }
  Object.assign(headingsFor, { query, found });
  return found;
};

var Scorer = {
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,

  score: (result) => {
    const [page, title, anchor, about, score, file, kind] = result;
    if (kind === "index") return 10;
    if (kind === "object") {
      // a member that is an everyday word stands behind the headings
      const whole = title.toLowerCase().endsWith(`.${asked()}`);
      const depth = title.split(".").length;
      return whole ? (depth > 3 && /^[a-z]+$/.test(asked()) ? 60 : 110) - depth : 20;
    }
    const [part, heading, id] = headingsFor(asked())[page] || [0];
    if (kind === "text" && id) {
      // the result leads to the place in the page
      result[1] = `${title} > ${heading}`;
      result[2] = `#${id}`;
    }
    const folder = page.includes("/") ? page.split("/")[0] : "";
    const below = { proofs: 60, api: 62, project: 65 }[folder] || 0;
    return 40 + Math.min(score, 16) + (heading ? 20 + Math.round(20 * part) : 0) - below;
  },
};
