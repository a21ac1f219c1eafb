//! Memory admission with real processes: who is let in, what they are told, and what is left when they are gone.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails there")]

mod comeback;
mod crash;
mod fixes;
mod force;
mod memory;
mod place;
mod policy;
mod server;
mod sharing;
mod untouched;
