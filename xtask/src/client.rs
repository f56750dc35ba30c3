//! As much of an HTTP client as a load generator needs.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
};

use anyhow::{Context, Result, bail};

/// One connection that is kept open.
#[derive(Debug)]
pub(crate) struct Client {
    stream: BufReader<TcpStream>,
    address: SocketAddr,
}

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address).with_context(|| format!("no connection to {address}"))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream: BufReader::new(stream), address })
    }

    /// The bytes of a request, to be sent as often as wanted.
    pub(crate) fn request(&self, method: &str, path: &str, body: &str) -> Vec<u8> {
        let Self { address, .. } = self;
        let head = format!("{method} {path} HTTP/1.1\r\nhost: {address}\r\nx-user-id: bench\r\n");
        let length = body.len();
        format!("{head}content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}").into_bytes()
    }

    /// Sends a request and reads the answer to its end. Gives its body.
    pub(crate) fn send(&mut self, request: &[u8]) -> Result<Vec<u8>> {
        self.stream.get_mut().write_all(request)?;
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        let status = line.split(' ').nth(1).unwrap_or_default().to_owned();
        let mut length = 0;
        loop {
            line.clear();
            self.stream.read_line(&mut line)?;
            let header = line.trim_end().to_ascii_lowercase();
            if header.is_empty() {
                break;
            }
            if let Some(value) = header.strip_prefix("content-length:") {
                length = value.trim().parse()?;
            }
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body)?;
        if !status.starts_with('2') {
            bail!("{status}: {}", String::from_utf8_lossy(&body));
        }
        Ok(body)
    }
}
