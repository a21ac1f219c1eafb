//! The user's choice of how much memory models may take, and the arithmetic from it to a ceiling.
