/* Sends the form that changes the next jobs, so that nobody has to press "Continue" for each thousand. */
"use strict";

document.querySelector("form[data-ojs-continue]").requestSubmit();
