// The search lists a heading that is asked for first, then a term of the glossary, then pages that mention the words.
var Scorer = {
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
  score: ([page, title, anchor, description, score, file, kind]) =>
    kind === "title" ? score + 30 : kind === "index" ? score / 4 : score,
};
