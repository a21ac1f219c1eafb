//! Which idle models make room at the least cost.
