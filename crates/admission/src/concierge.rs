//! The automatic, reversible choice of a policy.
