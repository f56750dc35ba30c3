-- "wsm1" in ASCII: tells our files from every other program's.
PRAGMA application_id = 2004053297;

-- What exists or may exist. Written before the first creation, removed only by destroy.
-- One row a backend: an id that was used on two of them has data on both.
CREATE TABLE workspaces (
    workspace_id TEXT NOT NULL,
    backend      TEXT NOT NULL,
    user_id      TEXT NOT NULL,
    agent_id     TEXT NOT NULL,
    session_id   TEXT NOT NULL,
    node         TEXT NOT NULL,
    generation   INTEGER NOT NULL DEFAULT 0,
    policy       TEXT CHECK (policy IN ('per_agent', 'per_session', 'per_user')),
    created_at   INTEGER NOT NULL,
    PRIMARY KEY (workspace_id, backend)
) STRICT;

CREATE TABLE sessions (
    seq             INTEGER PRIMARY KEY AUTOINCREMENT,
    user_id         TEXT NOT NULL,
    session_id      TEXT NOT NULL,
    agent_id        TEXT NOT NULL,
    workspace_id    TEXT NOT NULL,
    -- Whether the workspace was named in the request; else the policy of that time chose it.
    explicit        INTEGER NOT NULL,
    name            TEXT,
    -- The last generation of its workspace that the session was told; null before its first use.
    told_generation INTEGER,
    created_at      INTEGER NOT NULL,
    -- Set while the session is deleted and its own workspace is not gone yet.
    deleted_at      INTEGER,
    UNIQUE (user_id, session_id)
) STRICT;

CREATE INDEX sessions_by_workspace ON sessions (workspace_id);
CREATE INDEX sessions_by_agent ON sessions (user_id, agent_id, seq);
