"""What a project and its operators do to stored jobs: cancel, retry, revive, enqueue again; verify and repair them."""
