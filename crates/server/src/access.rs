//! Which web pages may read answers, which host names are ours, and where keys are asked for.
//!
//! A page of another site that gets its own name to point at this machine still sends that name in `Host`; a server
//! that is bound to a loopback address therefore answers to loopback names only, unless others were allowed.

use std::net::IpAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::http::uri::Authority;
use axum::http::{HeaderName, HeaderValue, Method, header};
use axum::middleware::{self, Next};
use axum::response::IntoResponse;
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

use crate::error::ApiError;
use crate::keys;
use crate::state::{Access, Shared};
use crate::voice::REQUEST_ID;

/// Puts the keys, the cross-origin rules and, when bound to loopback, the host rule in front of the routes.
///
/// The cross-origin rules stand before the keys: a preflight carries none, and a page must be able to read a refusal.
pub(crate) fn guard(
    router: Router<Arc<Shared>>,
    access: &Access,
    is_loopback: bool,
) -> Router<Arc<Shared>> {
    let router = keys::guard(router, &access.keys);
    let router = router.layer(cross_origin(access.origins.clone()));
    if !is_loopback {
        return router;
    }
    let hosts: Arc<[String]> = access.hosts.iter().map(|host| host.to_ascii_lowercase()).collect();
    router.layer(middleware::from_fn(move |request: Request, next: Next| {
        let hosts = Arc::clone(&hosts);
        async move {
            match foreign_host(&request, &hosts) {
                Some(host) => ApiError::ForeignHost { host }.into_response(),
                None => next.run(request).await,
            }
        }
    }))
}

fn cross_origin(origins: Vec<String>) -> CorsLayer {
    let allowed = move |origin: &HeaderValue, _: &axum::http::request::Parts| {
        origin.to_str().is_ok_and(|origin| {
            is_loopback_origin(origin)
                || origins.iter().any(|allowed| allowed == "*" || allowed == origin)
        })
    };
    CorsLayer::new()
        .allow_origin(AllowOrigin::predicate(allowed))
        .allow_methods([Method::GET, Method::POST])
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers([
            HeaderName::from_static("x-request-id"),
            REQUEST_ID,
            HeaderName::from_static("openai-processing-ms"),
            header::RETRY_AFTER,
            HeaderName::from_static("retry-after-ms"),
            header::WWW_AUTHENTICATE,
        ])
}

/// Returns the host that the request names if it is none of ours; a request without one comes from no browser.
fn foreign_host(request: &Request, hosts: &[String]) -> Option<String> {
    let value = request.headers().get(header::HOST)?;
    let text = String::from_utf8_lossy(value.as_bytes());
    let is_ours = text.parse::<Authority>().is_ok_and(|authority| {
        let host = authority.host().to_ascii_lowercase();
        is_loopback_host(&host) || hosts.contains(&host)
    });
    (!is_ours).then(|| text.into_owned())
}

fn is_loopback_origin(origin: &str) -> bool {
    ["http://", "https://"]
        .into_iter()
        .find_map(|scheme| origin.strip_prefix(scheme))
        .and_then(|rest| rest.parse::<Authority>().ok())
        .is_some_and(|authority| is_loopback_host(authority.host()))
}

fn is_loopback_host(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    bare.eq_ignore_ascii_case("localhost")
        || bare.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_machine_are_loopback() {
        for host in ["localhost", "LOCALHOST", "127.0.0.1", "127.8.9.1", "[::1]"] {
            assert!(is_loopback_host(host), "{host}");
        }
        for host in [
            "",
            "example.org",
            "localhost.example.org",
            "127.0.0.1.example.org",
            "10.0.0.1",
            "[::2]",
            "0.0.0.0",
        ] {
            assert!(!is_loopback_host(host), "{host}");
        }
    }

    #[test]
    fn an_origin_is_judged_by_its_host_and_not_by_how_it_begins() {
        for origin in [
            "http://localhost",
            "http://localhost:3000",
            "https://127.0.0.1:8080",
            "http://[::1]:1",
        ] {
            assert!(is_loopback_origin(origin), "{origin}");
        }
        for origin in [
            "null",
            "http://localhost.example.org",
            "http://127.0.0.1.example.org",
            "http://localhost@example.org",
            "localhost",
        ] {
            assert!(!is_loopback_origin(origin), "{origin}");
        }
    }
}
