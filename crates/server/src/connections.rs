//! Connections: after the shutdown those that were there are let end, and who still comes can hear that it has come too late.
//!
//! A client that dawdles over the head of a request, or stays silent between two, is cut. What a request is about is
//! not known here.

use std::io;
use std::pin::pin;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};

/// How long nothing is accepted after the system had no room for a connection.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves connections; returns when the last one that came before `shutdown` completed is closed. Later ones get one
/// answer each.
///
/// Dropping the future stops accepting at once and leaves the connections to themselves.
pub(crate) async fn serve(
    listener: TcpListener,
    app: Router,
    silence: Duration,
    shutdown: impl Future<Output = ()>,
) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(silence);
    let graceful = GracefulShutdown::new();
    let mut shutdown = pin!(shutdown);
    loop {
        let stream = tokio::select! {
            () = &mut shutdown => break,
            stream = accept(&listener) => stream,
        };
        let service = TowerToHyperService::new(app.clone());
        let connection = graceful.watch(http.serve_connection(TokioIo::new(stream), service));
        // How a client leaves concerns nobody else.
        tokio::spawn(async move { drop(connection.await) });
    }
    http.keep_alive(false);
    let mut closed = pin!(graceful.shutdown());
    loop {
        let stream = tokio::select! {
            () = &mut closed => return,
            stream = accept(&listener) => stream,
        };
        let service = TowerToHyperService::new(app.clone());
        let connection = http.serve_connection(TokioIo::new(stream), service);
        tokio::spawn(async move { drop(connection.await) });
    }
}

/// Returns the next connection, however long that takes.
async fn accept(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                // Small frames must leave at once; a refusal of the option costs latency only.
                drop(stream.set_nodelay(true));
                return stream;
            }
            Err(error) if is_the_clients(&error) => {}
            Err(error) => {
                log::error!("no connection can be accepted: {error}");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Says whether a connection was gone before it was accepted.
fn is_the_clients(error: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    matches!(
        error.kind(),
        Kind::ConnectionRefused | Kind::ConnectionAborted | Kind::ConnectionReset
    )
}
