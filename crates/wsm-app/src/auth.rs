//! Who is asking, and whether to believe it.
//!
//! | the request carries | and comes from | it speaks for | operator |
//! | --- | --- | --- | --- |
//! | the token `auth.token` | anywhere | the user in `X-User-ID` | yes |
//! | a token of `auth.tokens` | anywhere | that token's user | no |
//! | no token | loopback | the user in `X-User-ID` | yes, unless a proxy forwarded it |
//! | no token, but the marks of somebody else's web page | loopback | nobody: 403 | no |
//! | no token | anywhere else | nobody: 401 | no |
//! | a wrong token | anywhere | nobody: 401 | no |

use std::{fmt, net::IpAddr};

use blake2::{Blake2b512, Digest};
use http::{HeaderMap, HeaderName, StatusCode, header};
use secrecy::{ExposeSecret, SecretString};
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};
use wsm_core::UserId;

use crate::http::Problem;

/// The header that says who the user is.
pub const USER_HEADER: &str = "x-user-id";

/// What a proxy adds to a request that it passes on.
const FORWARDING_HEADERS: [&str; 3] = ["forwarded", "x-forwarded-for", "x-real-ip"];

/// Which tokens are valid, and whom else to trust.
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct AuthConfig {
    /// The token of a trusted front, which says who the user is.
    pub token: Option<SecretString>,
    /// Tokens of single users.
    pub tokens: Vec<(UserId, SecretString)>,
    /// Whether every peer is trusted as loopback is. Only for a service around this one that lets nobody through whom
    /// it has not authenticated, and that sets `X-User-ID` itself.
    pub trust_every_peer: bool,
}

impl fmt::Debug for AuthConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { token, tokens, trust_every_peer } = self;
        f.debug_struct("AuthConfig")
            .field("token", &token.is_some())
            .field("tokens", &tokens.len())
            .field("trust_every_peer", trust_every_peer)
            .finish()
    }
}

impl AuthConfig {
    /// Whether anybody but loopback can be let in.
    pub fn has_tokens(&self) -> bool {
        self.token.is_some() || !self.tokens.is_empty()
    }

    /// Finds out for whom a request speaks.
    pub(crate) fn authenticate(&self, headers: &HeaderMap, peer: Option<IpAddr>) -> Result<Principal, Problem> {
        // Whoever reads another one of several than we do has authenticated another request.
        for name in [HeaderName::from_static(USER_HEADER), header::AUTHORIZATION, header::HOST] {
            if headers.get_all(&name).iter().nth(1).is_some() {
                let detail = format!("the header `{name}` is given more than once");
                let problem = Problem::new(StatusCode::BAD_REQUEST, "invalid_input", "repeated_header", detail);
                return Err(problem.with_field(name.as_str()));
            }
        }
        let named = headers.get(USER_HEADER).map(|value| value.as_bytes()).filter(|value| !value.is_empty());
        let named = named.map(parse_user).transpose()?;
        match headers.get(header::AUTHORIZATION) {
            Some(value) if self.has_tokens() => match self.token_of(value.as_bytes()) {
                Some(Holder::Front) => Ok(Principal { user: named, operator: true }),
                Some(Holder::User(user)) if named.as_ref().is_none_or(|named| named == user) => {
                    Ok(Principal { user: Some(user.clone()), operator: false })
                }
                Some(Holder::User(_)) => Err(Problem::new(
                    StatusCode::FORBIDDEN,
                    "permission_denied",
                    "foreign_identity",
                    "`X-User-ID` names another user than the token does",
                )),
                None => Err(unauthenticated("invalid_token", "the bearer token is not valid")),
            },
            _ if !self.trust_every_peer && peer.is_some_and(is_loopback) && is_lured(headers) => Err(Problem::new(
                StatusCode::FORBIDDEN,
                "permission_denied",
                "foreign_origin",
                "the request names another site in `Host` or `Origin`: call this service by its address, or with a token",
            )),
            _ if self.trust_every_peer || peer.is_some_and(is_loopback) => {
                let forwarded = FORWARDING_HEADERS.iter().any(|name| headers.contains_key(*name));
                Ok(Principal { user: named, operator: !forwarded })
            }
            _ => Err(unauthenticated("authentication_required", "this service needs a bearer token")),
        }
    }

    /// Whose token this is. Every token is compared, so that the time tells nothing.
    fn token_of(&self, authorization: &[u8]) -> Option<Holder<'_>> {
        let given = authorization.split_at_checked(7).filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"bearer "));
        let given = Blake2b512::digest(given?.1);
        let matches = |token: &SecretString| Blake2b512::digest(token.expose_secret().as_bytes()).ct_eq(&given);
        let mut found = 0u32;
        for (place, (_, token)) in (1u32..).zip(&self.tokens) {
            found.conditional_assign(&place, matches(token));
        }
        let front = self.token.as_ref().map_or(Choice::from(0), matches);
        if bool::from(front) {
            return Some(Holder::Front);
        }
        let place = usize::try_from(found).ok()?.checked_sub(1)?;
        self.tokens.get(place).map(|(user, _)| Holder::User(user))
    }
}

enum Holder<'a> {
    Front,
    User(&'a UserId),
}

/// For whom a request speaks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Principal {
    /// The user, where one is named.
    pub(crate) user: Option<UserId>,
    /// Whether the routes of the operator are open to the request.
    pub(crate) operator: bool,
}

/// Whether a browser on this machine may have been talked into this request by a web page from elsewhere: through a
/// name of that page's own that suddenly means this machine (`Host`), or as a request across sites (`Origin`).
fn is_lured(headers: &HeaderMap) -> bool {
    let text = |name| headers.get(name).and_then(|value: &http::HeaderValue| value.to_str().ok());
    let host = text(header::HOST);
    let is_address = |host: &str| {
        let authority = host.parse::<http::uri::Authority>().ok();
        let name = authority.as_ref().map_or("", |it| it.host()).trim_matches(['[', ']']);
        name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
    };
    let renamed = host.is_some_and(|host| !is_address(host));
    let across = headers.contains_key(header::ORIGIN)
        && text(header::ORIGIN).and_then(|origin| origin.strip_prefix("http://")) != host;
    renamed || across
}

/// Whether an address is this machine's loopback, also in its IPv6 dress.
pub(crate) fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

fn parse_user(bytes: &[u8]) -> Result<UserId, Problem> {
    let text = std::str::from_utf8(bytes).map_err(|_| Problem::invalid("user_id", "`X-User-ID` is not UTF-8"))?;
    UserId::new(text).map_err(|error| Problem::invalid("user_id", error.to_string()))
}

/// The refusal of a request that does not say who is asking.
pub(crate) fn unauthenticated(code: &'static str, detail: &str) -> Problem {
    Problem::new(StatusCode::UNAUTHORIZED, "unauthenticated", code, detail)
        .with_header(header::WWW_AUTHENTICATE, "Bearer")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> AuthConfig {
        AuthConfig {
            token: Some("front".to_owned().into()),
            tokens: vec![
                (UserId::new("ann").unwrap(), "of-ann".to_owned().into()),
                (UserId::new("bob").unwrap(), "of-bob".to_owned().into()),
            ],
            trust_every_peer: false,
        }
    }

    fn ask(config: &AuthConfig, peer: &str, headers: &[(&str, &str)]) -> Result<(Option<String>, bool), u16> {
        let headers = headers
            .iter()
            .map(|(name, value)| (name.parse::<http::HeaderName>().unwrap(), value.parse().unwrap()))
            .collect();
        match config.authenticate(&headers, Some(peer.parse().unwrap())) {
            Ok(principal) => Ok((principal.user.map(|user| user.to_string()), principal.operator)),
            Err(problem) => Err(problem.status().as_u16()),
        }
    }

    #[test]
    fn the_header_is_believed_from_loopback_and_behind_the_token_only() {
        let id = ("x-user-id", "ann");
        let ann = || Some("ann".to_owned());
        for (peer, headers, answer) in [
            ("127.0.0.1", &[id][..], Ok((ann(), true))),
            ("::1", &[id], Ok((ann(), true))),
            ("::ffff:127.0.0.1", &[id], Ok((ann(), true))),
            ("127.0.0.1", &[id, ("x-forwarded-for", "10.0.0.1")], Ok((ann(), false))),
            ("127.0.0.1", &[id, ("host", "localhost:8080")], Ok((ann(), true))),
            ("::1", &[id, ("host", "[::1]:8080"), ("origin", "http://[::1]:8080")], Ok((ann(), true))),
            ("127.0.0.1", &[id, ("host", "evil.example:8080")], Err(403)),
            ("127.0.0.1", &[id, ("host", "127.0.0.1:8080"), ("origin", "http://evil.example")], Err(403)),
            ("127.0.0.1", &[id, ("host", "127.0.0.1:8080"), ("origin", "null")], Err(403)),
            ("127.0.0.1", &[id, ("host", "wsm.example"), ("authorization", "Bearer front")], Ok((ann(), true))),
            ("10.0.0.1", &[id], Err(401)),
            ("10.0.0.1", &[id, ("authorization", "Bearer front")], Ok((ann(), true))),
            ("10.0.0.1", &[("authorization", "bearer of-ann")], Ok((ann(), false))),
            ("10.0.0.1", &[("authorization", "Bearer of-bob")], Ok((Some("bob".to_owned()), false))),
            ("10.0.0.1", &[id, ("authorization", "Bearer of-bob")], Err(403)),
            ("10.0.0.1", &[id, ("authorization", "Bearer wrong")], Err(401)),
            ("127.0.0.1", &[id, ("authorization", "Bearer wrong")], Err(401)),
            ("10.0.0.1", &[id, ("authorization", "Basic front")], Err(401)),
            ("10.0.0.1", &[id, ("authorization", "Bearer ")], Err(401)),
        ] {
            assert_eq!(ask(&config(), peer, headers), answer, "{peer} {headers:?}");
        }
    }

    #[test]
    fn without_tokens_only_loopback_gets_in() {
        let config = AuthConfig::default();
        assert_eq!(ask(&config, "10.0.0.1", &[("x-user-id", "ann"), ("authorization", "Bearer x")]), Err(401));
        assert!(ask(&config, "127.0.0.1", &[("x-user-id", "ann"), ("authorization", "Bearer x")]).is_ok());
        assert_eq!(ask(&config, "127.0.0.1", &[("x-user-id", "a\tb")]), Err(422));
    }

    #[test]
    fn debug_shows_no_token() {
        assert!(!format!("{:?}", config()).contains("of-ann"));
    }
}
