/* Order of what the search finds: names that match whole, then the pages that people read, by their headings
   before their text, then other names, proofs, the text of the reference, and the project's own pages. */
const asked = () => (new URLSearchParams(window.location.search).get("q") || "").toLowerCase().trim();

const headingsFor = (query) => {
  // page -> its shortest heading that has every word of the query, as [text, anchor]
  if (headingsFor.query === query) return headingsFor.found;
  const stemmer = new Stemmer();
  const told = splitQuery(query).filter((word) => !stopwords.has(word));
  const words = told.map((word) => stemmer.stemWord(word));
  const found = {};
  for (const [title, places] of Object.entries(Search._index.alltitles)) {
    if (!words.length || !words.every((word) => title.toLowerCase().includes(word))) continue;
    for (const [file, id] of places) {
      const page = Search._index.docnames[file];
      if (!found[page] || title.length < found[page][0].length)
        found[page] = [title, title === Search._index.titles[file] ? null : id];
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
    const [folder] = page.split("/");
    const below = { proofs: 30, api: 35, project: 40 }[folder === page ? "" : folder] || 0;
    const path = title.toLowerCase().split(".");
    if (kind === "object") return path.pop() === asked() ? 100 - path.length : 20;
    if (kind === "index") return 10;
    const heading = headingsFor(asked())[page];
    if (kind === "text" && heading && heading[1]) {
      // the result leads to the place in the page
      result[1] = `${title} > ${heading[0]}`;
      result[2] = `#${heading[1]}`;
    }
    return 40 + Math.min(score, 16) + (heading ? 20 : 0) + (heading && !heading[1] ? 10 : 0) - below;
  },
};
