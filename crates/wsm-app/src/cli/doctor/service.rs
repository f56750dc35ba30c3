//! A running service.

use std::time::Duration;

use http::Method;
use serde::Deserialize;

use super::{
    super::remote::{Absent, Client, Refusal, RemoteArgs},
    report::{Check, Status},
};

const NAME: &str = "service";

/// How long a service has to answer; it gives its own engine half of that.
const TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Deserialize)]
struct Ready {
    backend: String,
}

pub(super) async fn check(service: RemoteArgs) -> Check {
    let client = match Client::of_operator(service) {
        Ok(client) => client,
        Err(error) => return Check::new(Status::Failed, NAME, format!("{error:#}")),
    };
    let ready = async { client.json(client.request(Method::GET, &["readyz"])?).await };
    match tokio::time::timeout(TIMEOUT, ready).await {
        Err(_) => Check::new(Status::Failed, NAME, format!("{} takes too long to answer", client.url())),
        Ok(Err(error)) if error.is::<Refusal>() => {
            Check::new(Status::Failed, NAME, format!("{error:#}")).with_advice("look into its log")
        }
        Ok(Err(error)) if error.is::<Absent>() => {
            let detail = format!("none answers at {}", client.url());
            let advice = "start one with `wsm serve`, or name it with `--url`; `wsm run` needs none";
            Check::new(Status::Warning, NAME, detail).with_advice(advice)
        }
        Ok(Err(error)) => Check::new(Status::Failed, NAME, format!("{error:#}")),
        Ok(Ok(answer)) => match serde_json::from_slice::<Ready>(&answer) {
            Ok(Ready { backend }) => {
                Check::ok(NAME, format!("one answers at {}, with the backend {backend}", client.url()))
            }
            Err(_) => Check::new(Status::Failed, NAME, format!("what answers at {} is not wsm", client.url())),
        },
    }
}
