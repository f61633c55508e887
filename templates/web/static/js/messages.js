// What shows and writes messages: loaded with the first one.

export { Answers } from "./answers.js";
export { Context } from "./context.js";
export { titleOf } from "./titles.js";
export { draw } from "./turns.js";
