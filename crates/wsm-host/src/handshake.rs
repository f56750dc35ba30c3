//! How the two sides of a connection that anybody on the machine could have made prove that they are the right ones.
//!
//! Both know a token. Each side sends random bytes, and proves with a keyed hash of the other's that it knows the token,
//! the inner side first: so nobody who only listens on the same port learns anything, nor can play what was said once.
//!
//! ```text
//! outer -> inner   32 random bytes
//! inner -> outer   keyed hash of those, and 32 random bytes
//! outer -> inner   keyed hash of those
//! ```

use std::time::Duration;

use blake2::{
    Blake2bMac,
    digest::{KeyInit, Mac, consts::U32},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    time::timeout,
};
use wsm_core::{Error, ErrorKind, Result};

const LENGTH: usize = 32;
/// How long the other side may take to prove itself: whoever listens on a port may never say anything.
const PROOF_LIMIT: Duration = Duration::from_secs(5);

/// What both sides of a connection know. Never shown.
#[derive(Clone)]
pub struct Token([u8; LENGTH]);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token")
    }
}

impl Token {
    /// Its length in bytes.
    pub const LENGTH: usize = LENGTH;

    /// A new one that nobody can guess.
    ///
    /// # Errors
    ///
    /// `backend` when the kernel gives no random bytes.
    pub fn random() -> Result<Self> {
        random().map(Self)
    }

    /// One that was told.
    pub fn from_bytes(bytes: [u8; LENGTH]) -> Self {
        Self(bytes)
    }

    /// What to tell the other side, by a way that nobody else can read.
    pub fn as_bytes(&self) -> &[u8; LENGTH] {
        &self.0
    }

    /// The same as text: 64 hexadecimal digits.
    pub fn to_text(&self) -> String {
        hex::encode(self.0)
    }

    /// One that was told as text; none for anything else.
    pub fn from_text(text: &str) -> Option<Self> {
        let mut bytes = [0; LENGTH];
        hex::decode_to_slice(text, &mut bytes).ok()?;
        Some(Self(bytes))
    }

    fn prove(&self, side: &[u8], challenge: &[u8; LENGTH]) -> Result<Blake2bMac<U32>> {
        let mut mac = Blake2bMac::<U32>::new_from_slice(&self.0)
            .map_err(|cause| Error::new(ErrorKind::Backend, "the token has a wrong length").with_source(cause))?;
        mac.update(side);
        mac.update(challenge);
        Ok(mac)
    }
}

const INNER: &[u8] = b"wsm inner";
const OUTER: &[u8] = b"wsm outer";

/// The outer side's part, before anything else is said.
///
/// # Errors
///
/// `permission_denied` when the other side does not know the token; `unavailable` when it hangs up; `timeout` when it says
/// nothing for five seconds.
///
/// # Cancel safety
///
/// Not: the connection is of no use after a dropped call.
pub async fn introduce(io: &mut (impl AsyncRead + AsyncWrite + Unpin), token: &Token) -> Result<()> {
    let message = || format!("the other side of the connection did not prove who it is within {PROOF_LIMIT:?}");
    timeout(PROOF_LIMIT, prove(io, token)).await.map_err(|_| Error::new(ErrorKind::Timeout, message()))?
}

async fn prove(io: &mut (impl AsyncRead + AsyncWrite + Unpin), token: &Token) -> Result<()> {
    let mine = random()?;
    io.write_all(&mine).await.map_err(silent)?;
    let (mut proof, mut theirs) = ([0; LENGTH], [0; LENGTH]);
    io.read_exact(&mut proof).await.map_err(silent)?;
    io.read_exact(&mut theirs).await.map_err(silent)?;
    token.prove(INNER, &mine)?.verify_slice(&proof).map_err(|_| stranger())?;
    io.write_all(&token.prove(OUTER, &theirs)?.finalize().into_bytes()).await.map_err(silent)
}

/// The inner side's part, before anything else is said.
///
/// # Errors
///
/// As for [`introduce`], but without a limit of its own.
///
/// # Cancel safety
///
/// As for [`introduce`].
pub async fn admit(io: &mut (impl AsyncRead + AsyncWrite + Unpin), token: &Token) -> Result<()> {
    let (mine, mut theirs) = (random()?, [0; LENGTH]);
    io.read_exact(&mut theirs).await.map_err(silent)?;
    io.write_all(&token.prove(INNER, &theirs)?.finalize().into_bytes()).await.map_err(silent)?;
    io.write_all(&mine).await.map_err(silent)?;
    let mut proof = [0; LENGTH];
    io.read_exact(&mut proof).await.map_err(silent)?;
    token.prove(OUTER, &mine)?.verify_slice(&proof).map_err(|_| stranger())
}

fn random() -> Result<[u8; LENGTH]> {
    let mut bytes = [0; LENGTH];
    // So few bytes come at once or not at all.
    match rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty()) {
        Ok(LENGTH) => Ok(bytes),
        Ok(_) => Err(Error::new(ErrorKind::Backend, "the kernel gives too few random bytes")),
        Err(errno) => Err(Error::new(ErrorKind::Backend, "the kernel gives no random bytes").with_source(errno)),
    }
}

fn stranger() -> Error {
    Error::new(ErrorKind::PermissionDenied, "the other side of the connection does not know the token")
}

fn silent(cause: std::io::Error) -> Error {
    Error::new(ErrorKind::Unavailable, "the other side of the connection did not prove who it is").with_source(cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn both_sides_must_know_the_token() {
        let (token, other) = (Token::random().unwrap(), Token::random().unwrap());
        for (outer, inner, is_right) in [(&token, &token, true), (&token, &other, false)] {
            let (mut near, mut far) = tokio::io::duplex(1024);
            let inner_side = async {
                let admitted = admit(&mut far, inner).await;
                drop(far);
                admitted
            };
            let outer_side = async {
                let introduced = introduce(&mut near, outer).await;
                drop(near);
                introduced
            };
            let (introduced, admitted) = tokio::join!(outer_side, inner_side);
            assert_eq!((introduced.is_ok(), admitted.is_ok()), (is_right, is_right));
            if !is_right {
                assert_eq!(introduced.unwrap_err().kind(), ErrorKind::PermissionDenied);
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_says_nothing_is_not_waited_for() {
        let (mut near, _far) = tokio::io::duplex(1024);
        let begun = tokio::time::Instant::now();
        let error = introduce(&mut near, &Token::random().unwrap()).await.unwrap_err();
        assert_eq!((error.kind(), begun.elapsed()), (ErrorKind::Timeout, PROOF_LIMIT));
    }

    #[tokio::test]
    async fn what_was_said_before_opens_nothing() {
        let token = Token::random().unwrap();
        let (mut near, mut far) = tokio::io::duplex(1024);
        // An outer side that only mirrors what it gets.
        let mirror = async {
            near.write_all(&[7; LENGTH]).await.unwrap();
            let mut said = [0; 2 * LENGTH];
            near.read_exact(&mut said).await.unwrap();
            near.write_all(&said[..LENGTH]).await.unwrap();
        };
        let ((), admitted) = tokio::join!(mirror, admit(&mut far, &token));
        assert_eq!(admitted.unwrap_err().kind(), ErrorKind::PermissionDenied);
        assert_eq!(format!("{token:?}"), "Token");
        assert_eq!(Token::from_text(&token.to_text()).unwrap().as_bytes(), token.as_bytes());
        assert!(Token::from_text("00").is_none());
    }
}
