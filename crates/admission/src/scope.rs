//! One name for a state root, however it is spelled.
