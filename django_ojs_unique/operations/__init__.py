"""What a project and its operators do to stored jobs, one or many: cancel, retry, revive, enqueue again."""
