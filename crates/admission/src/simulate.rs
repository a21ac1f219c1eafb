//! Replays arrivals under another policy or memory size.
