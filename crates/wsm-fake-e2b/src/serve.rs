//! Connections, and what happens to every request on them.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use anyhow::{Context as _, Result};
use axum::{Router, body::Body, response::Response};
use http::{HeaderName, HeaderValue, Request, StatusCode};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    time::sleep,
};
use tower::ServiceExt;

use crate::{
    control,
    fault::{Asked, Ending, Hits, What},
    operation::Operation,
    proxy::{self, Target},
    record::{Recorded, shown},
    remote, shape,
    state::Fake,
};

/// Listens until the fake ends.
pub(crate) async fn listen(fake: &Arc<Fake>, port: u16, only_sandboxes: bool) -> Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await;
    let listener = listener.with_context(|| format!("port {port} of this machine can not be listened at"))?;
    let address = listener.local_addr()?;
    let server = Server { api: control::router(fake), fake: Arc::clone(fake), only_sandboxes };
    let (stopped, tasks) = (fake.stopped.clone(), fake.tasks.clone());
    fake.tasks.spawn(async move {
        loop {
            let accepted = tokio::select! {
                () = stopped.cancelled() => return,
                accepted = listener.accept() => accepted,
            };
            let Ok((stream, _)) = accepted else { continue };
            let (server, stopped) = (server.clone(), stopped.clone());
            tasks.spawn(async move {
                tokio::select! {
                    () = stopped.cancelled() => {}
                    () = server.serve(stream) => {}
                }
            });
        }
    });
    Ok(address)
}

/// A handle of the connection that a request came on.
#[derive(Debug, Clone, Default)]
pub(crate) struct Connection {
    reset: Arc<AtomicBool>,
}

impl Connection {
    /// What a body yields that shall end the connection in the middle.
    pub(crate) fn broken(&self, ending: Ending) -> io::Error {
        if ending == Ending::Reset {
            self.reset.store(true, Ordering::Relaxed);
        }
        io::Error::other("this connection shall end here")
    }
}

#[derive(Clone)]
struct Server {
    fake: Arc<Fake>,
    api: Router,
    only_sandboxes: bool,
}

impl Server {
    async fn serve(&self, stream: TcpStream) {
        let _ = stream.set_nodelay(true);
        let connection = Connection::default();
        let stream = Stream { inner: stream, connection: connection.clone() };
        let service = service_fn(|request| self.answer(request, connection.clone()));
        let mut builder = http1::Builder::new();
        let _ = builder.timer(TokioTimer::new()).serve_connection(TokioIo::new(stream), service).await;
    }

    /// Answers a request. An error ends the connection without an answer.
    async fn answer(&self, request: Request<Incoming>, connection: Connection) -> io::Result<Response> {
        let request = request.map(Body::new);
        if request.uri().path().starts_with(remote::PREFIX) {
            return Ok(remote::answer(&self.fake, request).await);
        }
        let target = proxy::target(request.headers(), self.only_sandboxes);
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let (operation, sandbox) = match &target {
            Target::Api => Operation::of_api(&method, &path),
            Target::Sandbox { id, .. } => (Operation::of_envd(&method, &path), Some(&id[..])),
            Target::Bad(_) => (Operation::UnknownEnvd, None),
        };
        let asked = Asked { operation, method: method.as_str(), path: &path, sandbox };
        let hits = self.fake.faults.take(&asked);
        let index = self.fake.requests.add(Recorded {
            operation,
            method: method.as_str().to_owned(),
            path: path.clone(),
            query: without_signature(request.uri().query().unwrap_or_default()),
            sandbox: sandbox.map(str::to_owned),
            headers: shown(request.headers()),
            status: None,
            faulty: hits.iter().next().is_some(),
        });
        let response = match self.before(&hits, &connection).await? {
            Some(instead) => instead,
            None => {
                let response = self.carry_out(request, target, operation, &hits, &connection).await?;
                self.after(response, operation, &hits, &connection).await?
            }
        };
        self.fake.requests.answered(index, &path, response.status().as_u16());
        Ok(response)
    }

    /// What happens to a request instead of what it asks for.
    async fn before(&self, hits: &Hits, connection: &Connection) -> io::Result<Option<Response>> {
        for what in hits.iter() {
            match what {
                What::Delay { ms } => sleep(Duration::from_millis(*ms)).await,
                What::Answer { status, headers, body, applied: false } => {
                    return Ok(Some(made_up(*status, headers, body)));
                }
                What::Lose { applied: false, ending } => return Err(self.lose(*ending, connection).await),
                _ => {}
            }
        }
        Ok(None)
    }

    /// What happens to the answer of a request that was carried out.
    async fn after(
        &self,
        response: Response,
        operation: Operation,
        hits: &Hits,
        connection: &Connection,
    ) -> io::Result<Response> {
        let mut response = shape::shape(response, operation, hits, connection).await;
        for what in hits.iter() {
            match what {
                What::DelayAnswer { ms } => sleep(Duration::from_millis(*ms)).await,
                What::Answer { status, headers, body, applied: true } => response = made_up(*status, headers, body),
                What::Lose { applied: true, ending } => return Err(self.lose(*ending, connection).await),
                _ => {}
            }
        }
        Ok(response)
    }

    async fn lose(&self, ending: Ending, connection: &Connection) -> io::Error {
        if ending == Ending::Hang {
            self.fake.stopped.cancelled().await;
        }
        connection.broken(ending)
    }

    async fn carry_out(
        &self,
        mut request: Request<Body>,
        target: Target,
        operation: Operation,
        hits: &Hits,
        connection: &Connection,
    ) -> io::Result<Response> {
        request.extensions_mut().insert(hits.clone());
        let (fake, api, connection) = (Arc::clone(&self.fake), self.api.clone(), connection.clone());
        // A task of its own: what was begun is finished also when the client goes.
        let work = self.fake.tasks.spawn(async move {
            match target {
                Target::Api => Ok(match api.oneshot(request).await {
                    Ok(response) => response,
                    Err(impossible) => match impossible {},
                }),
                Target::Sandbox { id, port } => proxy::reach(&fake, &id, port, operation, request, &connection).await,
                Target::Bad(why) => Ok(made_up(400, &[], why)),
            }
        });
        work.await.map_err(io::Error::other)?
    }
}

/// An answer that nobody thought about.
pub(crate) fn made_up(status: u16, headers: &[(String, String)], body: &str) -> Response {
    let mut response = Response::new(Body::from(body.to_owned()));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    for (name, value) in headers {
        let name = HeaderName::from_bytes(name.as_bytes());
        if let (Ok(name), Ok(value)) = (name, HeaderValue::from_str(value)) {
            response.headers_mut().append(name, value);
        }
    }
    response
}

fn without_signature(query: &str) -> String {
    let pair = |pair: &str| if pair.starts_with("signature=") { "signature=***".to_owned() } else { pair.to_owned() };
    query.split('&').map(pair).collect::<Vec<_>>().join("&")
}

/// A connection that can be reset rather than closed.
struct Stream {
    inner: TcpStream,
    connection: Connection,
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.connection.reset.load(Ordering::Relaxed) {
            let _ = self.inner.set_zero_linger();
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(context, buffer)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.connection.reset.load(Ordering::Relaxed) {
            // Shut down properly, it would end properly.
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}
