// Texts to begin with. Those to correct have errors as people make them, which is what edits are for.
export const EXAMPLES = {
  generate: [
    { text: "The river" },
    { text: "He was born in" },
    { text: "The film tells the story of" },
    { text: "In the winter of 1812," },
  ],
  infill: [
    {
      text: "The city has a population of 20,000 people and lies on the coast of the Mediterranean Sea.",
      masked: ["population", "Mediterranean"],
    },
    {
      text: "The film was directed by Steven Spielberg and released in 1982. It won three Academy Awards.",
      masked: ["directed", "released", "Academy"],
    },
    {
      text: "He was born in London and studied law at the University of Cambridge.",
      masked: ["born", "studied", "law"],
    },
  ],
  correct: [
    {
      text: "Teh river runs thruogh the valley and into the the sea. It was discoverd in 1842 by a French explorer.",
    },
    {
      text: "The town lies on the north bank of the river and has a population of 20,000 poeple. It is teh capital of the province.",
    },
    {
      text: "The band recorded there first album in 1994 and toured the the country for two years.",
    },
  ],
};
