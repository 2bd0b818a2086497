"""The texts of the floors below that pages show. `sentences` finds them here, and translators in the catalogues.

A placeholder stands for what the floor writes there. `tests/admin/test_languages.py` finds a text that is missing.
"""

from __future__ import annotations

from django.utils.translation import gettext_noop as _

WORDINGS = (
    # States, outcomes, and other single words
    _("available"), _("active"), _("scheduled"), _("retryable"), _("pending"), _("completed"), _("cancelled"),
    _("discarded"), _("running"), _("quiet"), _("stopping"), _("silent"), _("created"), _("replaced"), _("rejected"),
    _("ignored"), _("deduplicated"), _("skipped"), _("already"), _("failed"), _("none recorded"),
    _("Available"), _("Completed"), _("Cancelled"), _("Discarded"),
    # Workflows
    _("chain"), _("group"), _("batch"), _("waiting"),
    _("after step {number}"),
    _("after step {number} ({name})"),
    _("when all jobs have ended"),
    _("when all jobs have completed"),
    _("when all jobs have ended and one has failed"),
    _("The job was cancelled."),
    _("The job expired before it started."),
    _("Job {id} was deleted."),
    _("Workflow {id} is {state}."),
    _("Workflow {id} is {state}; only a running one can be cancelled."),
    _("Workflow {id} does not exist any more."),
    # Operations
    _("cancel"), _("activate"), _("retry now"), _("retry"), _("revive"), _("enqueue again"), _("release"), _("delete"),
    _("Cancel"), _("Retry now"), _("Revive"), _("Enqueue again"), _("Release"), _("Delete"),
    _("Activated"), _("Made available"), _("Revived"), _("Enqueued again"), _("Taken out of uniqueness"), _("Deleted"),
    _("cancel job {id}"), _("activate job {id}"), _("retry job {id}"), _("revive job {id}"),
    _("enqueue job {id} again"), _("release job {id}"), _("delete job {id}"),
    # Why an operation was refused
    _("There is no job {id} in database {name}. It may have been pruned."),
    _("Job {id} takes no part in uniqueness."),
    _("Did not {verb}: it has changed meanwhile, and is {state}."),
    _("Cannot {verb}: it is {state}, and pruned."),
    _("Cannot {verb}: it is {state}, and was replaced by job {other}. Enqueue it again."),
    _("Cannot {verb}: it is {state}."),
    _("Cannot {verb}: it is {state}. Revive it."),
    _("Cannot {verb}: it is {state}. Enqueue it again."),
    _("Cannot {verb}: it is {state}. Cancel it first."),
    _("Cannot revive job {id}: job {other} is a live duplicate ({state})."),
    _("Did not enqueue job {id} again: job {other} is a duplicate ({state})."),
    _("Did not enqueue job {id} again: it holds its key itself. Revive it."),
    _("A job matching the uniqueness key already exists"),
    _("Job {id} is gone: it may have been pruned."),
    _("Job {id} is {state} by now."),
    _("Job {id} has left this fingerprint."),
    _("The job to keep, {id}, is gone: it may have been pruned. Nothing of this fingerprint was cancelled."),
    _("The job to keep, {id}, is {state} by now. Nothing of this fingerprint was cancelled."),
    _("The job to keep, {id}, has left this fingerprint. Nothing of this fingerprint was cancelled."),
    # What an operation would mean
    _("It becomes available now."),
    _("It is gone: deleted or pruned."),
    _("It is {state}: it has finished."),
    _("It is {state}, and is cancelled."),
    _("It is {state}, and is cancelled. Its handler is told, and its result is refused."),
    _("A live duplicate exists:"),
    _("{count} live duplicates exist:"),
    _("It is {state}: only a discarded or cancelled job is revived."),
    _("It is pruned: what it was to do is gone."),
    _("It was replaced by job {id}, so it never runs again."),
    _("It is scheduled again for {moment}."),
    _("Another job that you chose is alike: the older one is then its live duplicate."),
    _("No live duplicate exists: it is revived."),
    _("It is {state}: it has not finished yet."),
    _("A new job is created: {reason}"),
    _("A new job replaces others: {reason}"),
    _("Nothing is enqueued: {reason}"),
    _("It takes no part in uniqueness."),
    _("It keeps nothing out now; it only loses its fingerprint."),
    _("The next enqueue of {type} that it keeps out is admitted, although its window is open."),
    _("The next enqueue of {type} that it keeps out is admitted, although this job goes on."),
    _("It is active: cancel it first."),
    _("It waits, and would never run."),
    _("Its key becomes free: the next enqueue of {type} that it keeps out is admitted."),
    _("Its window was promised until {moment}, and would end now."),
    _("It keeps nothing out."),
    # What an enqueue would do, and why
    _("a job with the id {id} already exists."),
    _("the job carries no unique policy."),
    _("the job carries no unique policy. {said}"),
    _("job {id} is {state}, and on_conflict is {value}."),
    _("{count} duplicate would be cancelled, and on_conflict is {value}."),
    _("{count} duplicates would be cancelled, and on_conflict is {value}."),
    _("the duplicates are finished, and a finished job stays as it is."),
    _("no stored job is a duplicate now."),
    _("no job holds the key."),
    _("job {id} holds the key and is {state}, and key_mode is {value}"),
    _("{held}: it would lose the key and its further attempts."),
    _("{held}: it would be rewritten."),
    _("{held}: it would be rewritten, but for its time."),
    _("job {id} holds the key and is {state}, and key_mode is {value}."),
    _("No handler is registered here for {type}."),
    _("No handler is registered here for {type}. {meant}"),
    _("No handler is registered here for {type}: such jobs wait for workers that have one."),
    _("No handler is registered here for {type}: such jobs wait for workers that have one. {meant}"),
    _("Did you mean {name}?"),
    _("Valid: {names}."),
    _("{type} (did you mean {name}?)"),
    _("This is not JSON: line {line}, column {column}: {problem}."),
    _("This is nested too deeply to be read. Flatten it."),
    _("This has a number of too many digits. Send it as a string."),
    _("An object has the member {name} twice. Drop one of them."),
    _("{name} is not JSON. Send null, or a string."),
    _("Write a job's id, or at least {count} characters of a fingerprint: digits and a to f."),
    # What a job's row says about its uniqueness
    _("A duplicate is refused with DuplicateJob, which names this job."),
    _("A duplicate is answered with this job, and nothing is stored."),
    _("A duplicate replaces this job: this one is cancelled, running or not, and the new one is stored."),
    _(
        "A duplicate replaces this job: this one is cancelled, running or not, and the new one is stored."
        " While this one is scheduled, the new one takes over its time."
    ),
    _("A retry of this job runs, whatever else counts as its duplicate by then."),
    _("A retry of this job that is due while another one counts as its duplicate is discarded instead."),
    _("A duplicate is admitted, and this job stays as it is."),
    _(
        "Taken out of uniqueness by hand: it no longer holds the job key {key}, and the next enqueue with it is"
        " admitted."
    ),
    _("Taken out of uniqueness by hand: it holds no key, and counts as a duplicate for nobody."),
    _("Not unique: it was enqueued without a policy, or lost its job key to a newer enqueue while it ran."),
    _("Not unique: it was enqueued without a policy."),
    _("the job key {key}"),
    _("the job key {key} (within its type)"),
    _("the job key {key} (among all types)"),
    _("No longer holds {held}: it is {since}."),
    _("Has {held}, but does not hold it: a newer job was admitted past it, or it was revived."),
    _("Holds {held} since {moment}, until it is completed or cancelled."),
    _("While it runs, an enqueue with the key takes the key from it, with all further attempts."),
    _("An enqueue with the key uses this row again, as if it were new."),
    _("An enqueue with the key rewrites this job."),
    _("It was rewritten by its key {count} time."),
    _("It was rewritten by its key {count} times."),
    _("Its policy cannot be read: {reason}"),
    _("It has a fingerprint, but neither a policy nor a job key."),
    _("It keeps others of its fingerprint out for as long as it is {states}."),
    _("It keeps no other job out."),
    _("`manage.py jobs verify --fix` takes such a job out of uniqueness."),
    _("No longer holds its key: it is {since}, and its policy does not count {state} jobs."),
    _("Counts as a duplicate for enqueues that look at {state} jobs, {ending}."),
    _("It counts, but does not guard its key: a newer job was admitted past it, or it was revived."),
    _("No longer holds its key: its window ended at {moment}."),
    _(
        "No longer in the way: its window ended at {moment}, and enqueues since then have another window in their key."
    ),
    _(
        "Guards its key since {moment}, but no longer counts: its period ended at {end}."
        " The next enqueue under its policy is admitted, and takes the guard from it."
    ),
    _("Is {state}, but does not guard its key: a newer job was admitted past it, or it was revived."),
    _("It still counts as a duplicate for enqueues that look at {state} jobs, {ending}."),
    _("Holds its key since {moment}, against {rest}, {ending}."),
    _(
        "Its policy does not count {state} jobs: the next enqueue under it is admitted, and takes the guard from this"
        " job."
    ),
    _("{state} since {moment}"),
    _("{state} since {moment}, replaced by job {id}"),
    _("until it is {states}"),
    _("until {moment} or until it is {states}, whichever comes first"),
    _("until {moment}"),
    _("until it is pruned"),
    _("for as long as its row exists"),
    _("{members} + its window"),
    _("unknown: its policy cannot be read"),
    _("too long to be shown here"),
    _("There is no text, as the policy cannot be read."),
    _(
        "The text cannot be computed again: the args were pruned, and the row is kept only as it still counts as a"
        " duplicate."
    ),
    _("The text cannot be computed again: {reason}"),
    _(
        "The stored fingerprint is of scheme {number}, and this version computes scheme {other}."
        " `manage.py jobs rekey` computes it anew."
    ),
    _(
        "The stored fingerprint is not the one of this text: the row was changed since it was enqueued."
        " `manage.py jobs verify --fix` computes it anew."
    ),
    # How often and how soon it runs again
    _("Its retry policy cannot be read, so that it allows no further attempt. {reason}"),
    _("{said} When they are used up, it is discarded."),
    _("{said} When they are used up, it is kept as a dead letter."),
    _("{said} No retry after {errors}."),
    _("One attempt, no retry."),
    _("Up to {count} attempts, {waits}."),
    _("{first} apart"),
    _("the first wait {first}, each one {length} longer, up to {most}"),
    _("the first wait {first}, then that times the attempt to the power of {number}, up to {most}"),
    _("the first wait {first}, each one {number} times as long, up to {most}"),
    _("{waits}, with jitter"),
    # What happened to it
    _("Created"), _("Became available"), _("Scheduled for"), _("Failed"), _("Replaced by"), _("Due to run again"),
    _("Due to run"), _("The lease ends, unless its worker prolongs it"), _("Expires, unless it has started by then"),
    _("Its window ends"), _("Not tried again."), _("Tried again."),
    _("Tried again after {length}."),
    _("Attempt {number} failed"),
    _("Attempt {number} failed: {error}"),
    _("Failed: {error}"),
    _("Attempt {number} started"),
    _("Attempt {number} started by worker {id}"),
    _("{state}: it had nothing to do ({why})"),
    _("{name}: {done}."),
    _("{name}: {done}; a live duplicate was cancelled."),
    _("{name}: Cancelled as a duplicate of {id}."),
    # Workers and queues
    _("No worker runs: `manage.py runworker` starts one."),
    _("No worker runs: `manage.py runworker` starts one. {meant}"),
    _("No running worker says that it takes {queue}."),
    _("No running worker says that it takes {queue}. {meant}"),
    _("One takes {name}, in which there is no job: was {queue} meant?"),
    _("No job is searched by {name}: it is redacted."),
    _("Jobs with a redacted member are left out of the search for a text in the args."),
    _(
        "An id, a key, or at least 6 digits of a fingerprint; else a queue or the beginning of a type; else a text in"
        " the args. Write user_id=42 for a member of the args, args:42 for any text in them."
    ),
)  # fmt: skip
