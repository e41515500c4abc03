"""How clients differ as machines."""
