// What an empty page does without: loaded once it can be used, so that it is there at its first use, without the server too.

import "./code.js";
import "./export.js";
import "./messages.js";
export { beginOffline } from "./install.js";
