"""The service calls behind every protocol: gRPC servicers and the HTTP gateway both go through `topics.TopicsApi`."""
