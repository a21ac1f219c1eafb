//! What other processes of this machine hold.
