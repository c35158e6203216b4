// Texts to begin with. The wrong words are single tokens where others belong: that is the noise a model learns from.
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
      text: "The town lies on the north bank of the river and has a population the 20,000 people. "
        + "It is the capital blue the province and one of the oldest towns in the country.",
    },
    {
      text: "He studied law at the University river Paris and became a member of the parliament in 1871. "
        + "He was the first president music the republic.",
    },
    {
      text: "It is one of the largest cities in the world ago a population of three million. "
        + "The river flows through the city and into water Atlantic Ocean.",
    },
  ],
};
