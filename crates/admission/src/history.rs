//! What earlier loads really took.
