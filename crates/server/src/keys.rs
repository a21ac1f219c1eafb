//! API keys: who may ask. Whatever is not known to be public needs one, paths that lead nowhere included.
//!
//! A key never appears in a message, a log line or the output of `Debug`.

use std::fmt;
use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderMap, header};
use axum::middleware::{self, Next};
use axum::response::IntoResponse;
use subtle::{Choice, ConstantTimeEq};

use crate::error::ApiError;
use crate::state::Shared;

/// What supervisors and load balancers ask, who have no key; none of it tells what is loaded or who asks.
const PUBLIC_PATHS: [&str; 6] = ["/", "/health", "/v1/health", "/healthz", "/livez", "/readyz"];

/// A secret that lets its holder use the server.
#[derive(Clone)]
pub struct ApiKey(Box<[u8]>);

/// A text that cannot be an API key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an API key is one or more visible ASCII characters, without spaces")]
pub struct UnusableKey;

impl ApiKey {
    /// Takes a key that a header can carry.
    ///
    /// # Errors
    /// An empty text, and one with spaces, control characters or characters beyond ASCII.
    pub fn new(text: &str) -> Result<Self, UnusableKey> {
        let is_usable = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
        if is_usable { Ok(Self(text.as_bytes().into())) } else { Err(UnusableKey) }
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("ApiKey(…)")
    }
}

/// Asks every request for a key, if there are keys.
pub(crate) fn guard(router: Router<Arc<Shared>>, keys: &[ApiKey]) -> Router<Arc<Shared>> {
    if keys.is_empty() {
        return router;
    }
    let keys: Arc<[ApiKey]> = keys.into();
    router.layer(middleware::from_fn(move |request: Request, next: Next| {
        let keys = Arc::clone(&keys);
        async move {
            let is_public = PUBLIC_PATHS.contains(&request.uri().path());
            match check(request.headers(), &keys) {
                Err(error) if !is_public => error.into_response(),
                _ => next.run(request).await,
            }
        }
    }))
}

/// Looks for a valid key in `authorization` and `x-api-key`; one is enough.
fn check(headers: &HeaderMap, keys: &[ApiKey]) -> Result<(), ApiError> {
    let bearer =
        headers.get_all(header::AUTHORIZATION).iter().map(|value| bearer(value.as_bytes()));
    let plain = headers.get_all("x-api-key").iter().map(|value| Some(value.as_bytes()));
    let mut error = ApiError::MissingKey;
    for shown in bearer.chain(plain) {
        if shown.is_some_and(|shown| is_known(shown, keys)) {
            return Ok(());
        }
        error = ApiError::WrongKey;
    }
    Err(error)
}

/// Returns what follows the scheme, whose name may be written in any case.
fn bearer(value: &[u8]) -> Option<&[u8]> {
    const SCHEME: &[u8] = b"bearer ";
    let (scheme, rest) = value.split_at_checked(SCHEME.len())?;
    scheme.eq_ignore_ascii_case(SCHEME).then(|| rest.trim_ascii())
}

/// Compares with all keys, in a time that depends on lengths alone.
fn is_known(shown: &[u8], keys: &[ApiKey]) -> bool {
    let found = keys.iter().fold(Choice::from(0), |found, key| found | key.0.ct_eq(shown));
    found.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_what_a_header_can_carry() {
        for text in ["k", "sk-0123456789", "a!~\"#"] {
            assert!(ApiKey::new(text).is_ok(), "{text}");
        }
        for text in ["", " ", "a b", "key\n", "clé", "\u{7f}"] {
            assert_eq!(ApiKey::new(text).err(), Some(UnusableKey), "{text:?}");
        }
    }

    #[test]
    fn a_key_is_never_shown() {
        let key = ApiKey::new("sesame").unwrap();
        assert!(!format!("{key:?}").contains("sesame"));
    }

    #[test]
    fn the_scheme_is_read_in_any_case_and_no_other_counts() {
        assert_eq!(bearer(b"Bearer abc"), Some(&b"abc"[..]));
        assert_eq!(bearer(b"BEARER  abc "), Some(&b"abc"[..]));
        for other in [&b"Basic abc"[..], b"abc", b"", b"Bearer", b"Bearerabc"] {
            assert_eq!(bearer(other), None);
        }
    }

    #[test]
    fn only_a_whole_key_is_known() {
        let keys = ["alpha", "beta"].map(|text| ApiKey::new(text).unwrap());
        assert!(is_known(b"alpha", &keys) && is_known(b"beta", &keys));
        for shown in [&b""[..], b"alph", b"alphab", b"Alpha", b"gamma", b"alphabeta"] {
            assert!(!is_known(shown, &keys));
        }
    }
}
