"""Where transactions wait: files for what must outlive a crash, Arrow for what applications send."""
