//! What was being loaded when a process ended.
