//! The connections of the service.

use std::{net::SocketAddr, time::Duration};

use axum::{
    Router,
    body::Body,
    extract::{ConnectInfo, Request},
    serve::Listener,
};
use hyper::{body::Incoming, server::conn::http1};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    net::{TcpListener, TcpStream},
    time::timeout,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::ServiceExt;

/// Lets everybody in until `stop`, and then waits for what goes on.
///
/// A client has `head_timeout` for the head of each request; a connection on which none comes is closed.
pub(super) async fn serve(mut listener: TcpListener, router: Router, head_timeout: Duration, stop: CancellationToken) {
    let connections = TaskTracker::new();
    while let Some((stream, peer)) = stop.run_until_cancelled(Listener::accept(&mut listener)).await {
        connections.spawn(connection(stream, peer, router.clone(), head_timeout, stop.clone()));
    }
    drop(listener);
    connections.close();
    connections.wait().await;
}

async fn connection(
    stream: TcpStream,
    peer: SocketAddr,
    router: Router,
    head_timeout: Duration,
    stop: CancellationToken,
) {
    // Nothing is owed to a client that has not begun to ask.
    let begun = stop.run_until_cancelled(timeout(head_timeout, stream.readable())).await;
    if !matches!(begun, Some(Ok(Ok(())))) {
        return;
    }
    let service = router.map_request(move |request: Request<Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(ConnectInfo(peer));
        request
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(head_timeout);
    let mut connection = std::pin::pin!(http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service)));
    let served = tokio::select! {
        served = &mut connection => served,
        () = stop.cancelled() => {
            // What was asked for is answered, and nothing more.
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = served {
        tracing::debug!(%peer, %error, "a connection broke off");
    }
}
