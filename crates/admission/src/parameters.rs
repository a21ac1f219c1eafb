//! Numbers of parameters as people write them.
