//! Identifiers that no other answer has; they are unique, not secret.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

use axum::http::{HeaderValue, Request};
use tower_http::request_id::{MakeRequestId, RequestId};

/// Returns 32 hexadecimal digits.
///
/// They come from the seeds that the standard library draws for its hash maps, which saves a random number crate.
pub(crate) fn unique() -> String {
    let draw = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", draw(), draw())
}

/// Names the requests that arrive without an `x-request-id`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestIds;

impl MakeRequestId for RequestIds {
    fn make_request_id<B>(&mut self, _: &Request<B>) -> Option<RequestId> {
        HeaderValue::try_from(format!("req_{}", unique())).ok().map(RequestId::new)
    }
}
