//! The locks of [`crate::pool`] and [`crate::host`], under a name that their interleaving tests replace by a scheduler's.

pub(crate) use std::sync::atomic::{AtomicUsize, Ordering};
pub(crate) use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
