// Small types are shown by their source, comments and all: unfolded.
for (const source of document.querySelectorAll("details.mkdocstrings-source")) source.open = true;
