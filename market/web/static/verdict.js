// Says what came of a check: a glyph and words beside the colour.
const GLYPHS = { good: "\u2713", bad: "\u2716", busy: "\u25b8" };

export const say = (place, tone, words) => {
  place.textContent = `${GLYPHS[tone]} ${words}`;
  place.className = `note ${tone}`;
  place.dataset.verdict = tone;
};
