//! The HTTP API.
//!
//! An embedder's own routes can use [`Caller`], [`CallerWorkspace`] and [`Manager`] beside ours, and answer errors with
//! [`Problem`].

mod admin;
mod body;
mod directories;
mod docs;
mod download;
mod error;
mod events;
mod exec;
mod extract;
mod files;
mod health;
mod observe;
mod opening;
mod sessions;
mod sse;
mod status;

use axum::{Extension, Router, middleware};
use http::{StatusCode, Uri};
use tower_http::catch_panic::CatchPanicLayer;
use utoipa::{
    Modify, OpenApi,
    openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme},
};
use utoipa_axum::{router::OpenApiRouter, routes};

pub(crate) use download::DownloadTokens;
pub use error::Problem;
pub use extract::{Caller, CallerWorkspace, Identity, Manager};

use crate::app::SharedState;

/// Carries the id of a request, in both directions.
pub const REQUEST_ID_HEADER: &str = "x-request-id";

/// Tells the permissions of a file that is read, in octal digits, where the backend knows them.
pub const FILE_MODE_HEADER: &str = "x-file-mode";

/// Tells a session, once, that files of its workspace were lost: which parts of the state, and why.
pub const LOST_HEADER: &str = "x-workspace-lost";

#[derive(OpenApi)]
#[openapi(
    info(
        title = "wsm",
        description = "Workspaces for AI agents: who asks decides which workspace a command runs in.\n\nEvery error is \
                       `application/problem+json`. Times are RFC 3339, but for files, where they are seconds since 1970.\n\n\
                       A session whose workspace lost files learns of it once, by the header `X-Workspace-Lost`: what was \
                       lost, and why where that is known, as in `workspace_files, processes; cause=deleted`."
    ),
    tags(
        (name = "sessions", description = "Who asks: a session belongs to a user's agent and holds its workspace's id."),
        (name = "workspace", description = "Commands and files in the workspace of a session."),
        (name = "admin", description = "For operators: loopback, or the token of a trusted front."),
        (name = "service", description = "About the service itself."),
    ),
    modifiers(&Tokens),
    // From loopback, no token is needed.
    security((), ("token" = []))
)]
struct Document;

struct Tokens;

impl Modify for Tokens {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let about = "The token of a trusted front, or of a single user. Not needed from this machine's loopback.";
        let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some(about)).build();
        let components = document.components.get_or_insert_default();
        components.add_security_scheme("token", SecurityScheme::Http(bearer));
    }
}

/// All routes with their descriptions.
fn described() -> (Router, utoipa::openapi::OpenApi) {
    OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(sessions::create, sessions::list))
        .routes(routes!(sessions::get, sessions::delete))
        .routes(routes!(exec::exec))
        .routes(routes!(files::read, files::write, files::remove))
        .routes(routes!(download::token))
        .routes(routes!(directories::list, directories::make))
        .routes(routes!(status::status))
        .routes(routes!(admin::list))
        .routes(routes!(admin::get, admin::destroy))
        .routes(routes!(admin::close))
        .routes(routes!(events::events))
        .routes(routes!(health::healthz))
        .routes(routes!(health::readyz))
        .routes(routes!(health::metrics))
        .split_for_parts()
}

/// The OpenAPI document.
pub fn openapi() -> utoipa::openapi::OpenApi {
    described().1
}

pub(crate) fn router(state: SharedState) -> Router {
    let (routes, document) = described();
    routes
        .merge(docs::routes(&document))
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(CatchPanicLayer::custom(observe::panicked))
        .layer(middleware::from_fn(body::watch))
        .layer(middleware::from_fn(observe::observe))
        .layer(Extension(state))
}

async fn not_found(uri: Uri) -> Problem {
    let detail = format!("there is no `{}` here: see /docs", uri.path());
    Problem::new(StatusCode::NOT_FOUND, "not_found", "route_not_found", detail)
}

async fn method_not_allowed(method: http::Method) -> Problem {
    let detail = format!("this route has no `{method}`: `Allow` lists what it has");
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "not_found", "method_not_allowed", detail)
}
