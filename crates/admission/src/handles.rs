//! Typed handles on the ledger's records.
