//! A checkpoint's layers and what each remembers.
