//! How much memory the machine has left.
