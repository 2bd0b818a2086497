"""What a project and its operators do to stored jobs: cancel, retry, enqueue again; verify and repair them."""
